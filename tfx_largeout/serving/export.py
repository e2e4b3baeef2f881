# SPDX-License-Identifier: Apache-2.0
"""export: a model that gives the k best classes, as a SavedModel of TensorFlow's ops."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, flag_argument, integer_argument, number_argument
from tfx_largeout.class_filter import ClassFilter, Findable
from tfx_largeout.class_names import class_names
from tfx_largeout.distribute.workers import Workers, current
from tfx_largeout.heads.base import Head, HeadOutput
from tfx_largeout.heads.large_logits import without_logits
from tfx_largeout.indexes import HashIndex
from tfx_largeout.keras_internals import flat_layers
from tfx_largeout.layers.top_k import (
    activated,
    activation_argument,
    filter_of,
    output_of_model,
    probabilities_argument,
)
from tfx_largeout.serving.mapped_files import MappedFiles
from tfx_largeout.serving.searcher import Searcher, SearchOptions, searcher_of
from tfx_largeout.serving.serving_inputs import ServingInputs
from tfx_largeout.serving.stored_rows import DTYPES, variable
from tfx_largeout.written_whole import written_whole

DEFAULT, WITH_NUM_PROBED = "serving_default", "with_num_probed"
NUM_PROBED = "num_probed"  # the input of the signature `with_num_probed`

_OF_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")


def export(
    model: keras.Model,
    folder: str | Path,
    k: int = 10,
    *,
    index: str | HashIndex | None = None,
    activation: str | None = None,
    rows: str = "float32",
    rescore: bool = False,
    names: Any = None,
    num_lists: int | None = None,
    num_probed: int | None = None,
    num_found: int | None = None,
    exclude: bool = False,
    allow: Any = None,
    categories: Any = None,
    probabilities: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    input_signature: Any = None,
) -> None:
    """Writes a SavedModel that gives the k best classes, for servers without this package.

    The file has only TensorFlow's ops: TensorFlow Serving loads it, and so do
    `tf.saved_model.load`, the C API, Java and Go. Its signature `serving_default` takes the inputs
    of the model, of any batch size, and returns by name

        scores         [..., k] float32: the largest o_c = w_c . h + b_c, falling
        ids            [..., k] int64: their classes
        log_partition  [...] float32: log sum_c exp(o_c), with activation="softmax"
        names          [..., k] string: names[id], with `names`

    Without an index, all classes are read, block by block: scores and ids are as in `TopK`, ties by
    lower id. With `index="ivf"`, rows of W are in lists around the centers of k-means; a request
    computes the logits of the `num_probed` lists nearest to h, and misses classes in other lists:
    `tlo.serving.recall` measures how many. With a `HashIndex`, a request reads the buckets of
    `num_probed` of its tables, and computes the logits of the first `num_found` classes in them:
    scores and ids are as in `TopK` with this index. In both cases the signature `with_num_probed`
    has one more input, the int32 scalar `num_probed`; if fewer than k classes are found, -inf and
    -1 follow (0 with an activation, and the name "").

    Preprocessing layers of the model are included. From the head only W and b are: no slots of
    optimizers, and only the tables of the chosen index. docs/guides/serving.md shows how to load
    and serve the folder.

    Cost: a request takes O(B C D) time, and memory for a few blocks of 2^22 logits; with lists O(B
    (`num_lists` + P C / `num_lists`) D) time and memory for a few copies of B P 1.25 C /
    `num_lists` logits, P = `num_probed`. On disk and in the server 4, 2 or 1 D bytes per class, by
    `rows`; 1.25 times as much with lists; 4 D more with `rescore`. The export with lists needs
    memory for about three more W, and O(C `num_lists` D) time. A `HashIndex` of L tables of H
    hashes: O(B (L (H D + classes in buckets) + `num_found` D)) time, and 4 (C + buckets) bytes per
    table besides W.

    Args:
        model: A built model whose only output comes from a head.
        folder: The folder to write; it must not exist, or be empty. TensorFlow Serving needs a
            version number as its name: `"models/words/1"`.
        k: The number of classes, 1 <= k <= C. Default 10.
        index: None (default): exact; `"ivf"`: an inverted file; or a `HashIndex`: `head.index`,
            which a `SampledHead` may have, or another one after `index.rebuild(head.kernel,
            head.bias)`. Its present tables are written: the tables of `head.index` may be older
            than W by a period of steps, until `rebuild`.
        activation: None for logits (default); `"softmax"` for probabilities among all classes, or
            with an index among the classes that are searched; `"sigmoid"` for each class.
        rows: How W is stored: `"float32"` (default), `"bfloat16"` or `"int8"`, with a scale per
            row. Scores and `log_partition` are then computed from the rounded rows.
        rescore: Whether the best 4 k by `rows` are scored again with float32 rows, which are also
            stored; `log_partition` then uses these scores. Default False.
        names: The names of the C classes: a list of strings, the path of a file with a name per
            line, or a `keras.layers.StringLookup`. They must be distinct, and become an asset.
        num_lists: The number of lists, 1 <= `num_lists` <= C. Default: sqrt(C).
        num_probed: The default number of lists, or tables of a `HashIndex`, that a request reads.
            Default: a sixteenth of the lists, all tables.
        num_found: The largest number of classes that a `HashIndex` finds, k <= `num_found` <= C.
            Default: min(max(1,000, 10 k), C).
        exclude: Whether a request can exclude classes, by an input `exclude` `[..., E]` int64 after
            the inputs of the model: ids padded with -1, for any E, also 0. Default False. Classes
            that the model's head excludes are always left out.
        allow: As `TopK`.
        categories: As `TopK`; a request then has an input `category` `[...]` int64, too; -1: any
            category.
        probabilities: True: as `activation="softmax"`. Default False.
        temperature: T > 0: scores and `log_partition` are computed from o / T; must be 1 with a
            `HashIndex`. Default 1.
        seed: The seed of k-means: the same seed gives the same lists.
        input_signature: The specs of the inputs of `model(inputs)`, as (nested) `tf.TensorSpec` and
            `tf.SparseTensorSpec`. Required for a model that is neither functional nor sequential.

    A single input is named `inputs`, several as in the model. A sparse input x becomes three:
    `x_indices` `[N, 2]` int64, `x_values` `[N]` and `x_dense_shape` `[2]` int64.

    Raises:
        TypeError: The model does not end in a head; `names` are not strings; the head has no W for
            the `HashIndex`.
        FileNotFoundError: The file of `names` does not exist.
        ValueError: An argument is unknown, out of range or not for this head or index; the model is
            not built, or needs `input_signature`, or has ops that exist only in this process; the
            `HashIndex` was built for a W of another shape, or its tables are corrupt.
        FileExistsError: `folder` is not empty, or is a file.
        RuntimeError: The classes are spread over several workers: save the model by
            `tlo.save_model`, and export it in one process. Or the `HashIndex` was not built.
        OSError: The folder can't be written.

    After an error nothing is written.

    References:
        Jégou, Douze, Schmid 2011, Product quantization for nearest neighbor search, section IV;
        Vijayanarasimhan, Shlens, Monga, Yagnik 2014, section 3.3 (hash tables).
    """
    path = Path(folder).resolve()  # if it is a link, its target is written
    findable, flag = Findable.of(allow, categories), flag_argument("exclude", exclude)
    more = [*["exclude"] * flag, *["category"] * (findable.categories is not None)]
    activation = probabilities_argument(probabilities, activation)
    options = _checked_options(
        SearchOptions(
            k, index, activation, rows, rescore, num_lists, num_probed, num_found, seed, temperature
        )
    )
    _check_model(model)
    _check_free(path)
    inputs = ServingInputs(model, input_signature)
    names_of_inputs = [spec.name for spec in inputs.specs]
    taken = [*more, *[NUM_PROBED] * (options.index is not None)]
    if set(taken) & set(names_of_inputs):
        raise ValueError(
            f"inputs must have other names than {', '.join(map(repr, taken))}, which requests have "
            f"besides; got {names_of_inputs}"
        )
    head, batch_rank = _head_of(model, inputs)
    allowed_of = _filter_of(findable, more, head.num_classes)
    inputs_of_filter = [
        tf.TensorSpec([None] * (batch_rank + (name == "exclude")), tf.int64, name) for name in more
    ]
    checked = class_names(names, head.num_classes)
    searcher = searcher_of(head, options)
    with _written_with_parents(path) as unfinished:
        assets = unfinished.with_name(unfinished.name + ".assets")
        table = None if checked is None else _names_table(checked, assets)
        archive = keras.export.ExportArchive()
        for each in [*_tables_below(model, head), *([] if table is None else [table])]:
            archive.track(each)
        endpoints = _endpoints(
            model, inputs, searcher, options, table, inputs_of_filter, allowed_of
        )
        for name, endpoint in endpoints.items():
            endpoint.get_concrete_function()
            archive.add_endpoint(name, endpoint)
        _write_out(archive, unfinished, MappedFiles(searcher.variables))


def _write_out(archive: Any, folder: Path, mapped: MappedFiles) -> None:
    """Writes a SavedModel; turns TensorFlow's errors of writing into an OSError."""
    try:
        options = tf.saved_model.SaveOptions(experimental_sharding_callback=mapped)
        archive.write_out(str(folder), options, verbose=False)
        mapped.describe(folder)
    except (tf.errors.ResourceExhaustedError, tf.errors.UnknownError) as error:
        number = errno.ENOSPC if os.strerror(errno.ENOSPC) in error.message else errno.EIO
        raise OSError(number, error.message) from error


@contextlib.contextmanager
def _written_with_parents(path: Path) -> Iterator[Path]:
    """As `written_whole`; also creates parent folders, and removes them after an error."""
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as unfinished:
            yield unfinished
    except BaseException:
        for each in made:
            with contextlib.suppress(OSError):  # others may have written files there
                each.rmdir()
        raise


def _endpoints(
    model: keras.Model,
    inputs: ServingInputs,
    searcher: Searcher,
    options: SearchOptions,
    names: tf.lookup.StaticHashTable | None,
    inputs_of_filter: list[tf.TensorSpec],
    allowed_of: Callable[..., ClassFilter | None],
) -> dict[str, Any]:
    def answer(tensors: Sequence[tf.Tensor], num_probed: tf.Tensor | None) -> dict[str, tf.Tensor]:
        number = len(inputs.specs)
        output = _output_of(model, inputs, tensors[:number])
        allowed = allowed_of(output, tensors[number:])
        best = searcher.best(output.flat_hidden, num_probed, allowed)
        found = {"scores": activated(best, options.activation), "ids": best.ids}
        if best.log_partition is not None:
            found["log_partition"] = best.log_partition
        if names is not None:
            found["names"] = names.lookup(best.ids)
        return {name: output.unflatten(values) for name, values in found.items()}

    def by_default(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        number = searcher.num_probed
        return answer(tensors, None if number is None else tf.constant(number))

    def with_num_probed(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        most = searcher.most_probed
        check = tf.debugging.Assert(
            (tensors[-1] >= 1) & (tensors[-1] <= most),
            [
                f"num_probed must be at least 1 and at most {most}, as many as there are; got",
                tensors[-1],
            ],
        )
        with tf.control_dependencies([check]):
            return answer(tensors[:-1], tf.identity(tensors[-1]))

    def endpoint(function: Callable[..., Any], *more: tf.TensorSpec) -> Any:
        return tf.function(
            function, input_signature=[*inputs.specs, *inputs_of_filter, *more], autograph=False
        )

    endpoints = {DEFAULT: endpoint(by_default)}
    if searcher.most_probed is not None:
        number = tf.TensorSpec([], tf.int32, NUM_PROBED)
        endpoints[WITH_NUM_PROBED] = endpoint(with_num_probed, number)
    return endpoints


def _filter_of(
    findable: Findable, names: list[str], num_classes: int
) -> Callable[[HeadOutput, Sequence[tf.Tensor]], ClassFilter | None]:
    """Returns a function that makes the filter from an output and the inputs of these names."""
    groups = findable.groups(num_classes)
    kept = None if groups is None else variable(groups)

    def allowed(output: HeadOutput, tensors: Sequence[tf.Tensor]) -> ClassFilter | None:
        given = {"exclude": None, "category": None, **dict(zip(names, tensors, strict=True))}
        table = None if kept is None else tf.convert_to_tensor(kept)
        return filter_of(output, findable, table, **given)

    return allowed


def _names_table(names: list[str], folder: Path) -> tf.lookup.StaticHashTable:
    """Writes names to an asset and returns its table: line c is the name of class c; -1: ""."""
    folder.mkdir()
    path = folder / "names.txt"
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8", newline="\n")
    lines = tf.lookup.TextFileInitializer(
        str(path),
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
        vocab_size=len(names),
    )
    return tf.lookup.StaticHashTable(lines, default_value="")


def _output_of(
    model: keras.Model, inputs: ServingInputs, tensors: Sequence[tf.Tensor]
) -> HeadOutput:
    with without_logits():
        return output_of_model(model, inputs.packed(tensors))


def _head_of(model: keras.Model, inputs: ServingInputs) -> tuple[Head, int]:
    """Returns the head of a model, and the number of batch dimensions of its output."""
    outputs: list[HeadOutput] = []

    # First with logits: a tf.function in the model keeps its trace, and would go on returning no
    # logits. Such a model raises an error here, as a tf.function drops the `HeadOutput`.
    @tf.function(input_signature=inputs.specs, autograph=False)
    def plain(*tensors: tf.Tensor) -> tf.Tensor:
        output_of_model(model, inputs.packed(tensors))
        return tensors[0]

    @tf.function(input_signature=inputs.specs, autograph=False)
    def trace(*tensors: tf.Tensor) -> tf.Tensor:
        output = _output_of(model, inputs, tensors)
        outputs.append(output)
        return output.hidden

    plain.get_concrete_function()
    _check_ops(trace.get_concrete_function())
    _refuse_several(outputs[0].head.workers)
    return outputs[0].head, outputs[0].batch_rank


def _tables_below(model: keras.Model, head: Head) -> list[Any]:
    """Returns the lookup tables of the layers that are outside the head and don't contain it.

    Variables are written anyway, because endpoints read them; tracking a layer would write its
    variables twice.
    """
    of_head = {id(layer) for layer in flat_layers(head)}
    tables = {}
    for layer in flat_layers(model):
        if not of_head & {id(part) for part in flat_layers(layer)}:
            for part in tf.train.TrackableView(layer).descendants():
                if isinstance(part, tf.saved_model.experimental.TrackableResource):
                    tables[id(part)] = part
    return list(tables.values())


def _checked_options(options: SearchOptions) -> SearchOptions:
    k = integer_argument("k", options.k, at_least=1)
    integer_argument("seed", options.seed, at_least=0)
    is_hash = isinstance(options.index, HashIndex)
    is_lists = isinstance(options.index, str) and options.index == "ivf"
    if options.index is not None and not is_hash and not is_lists:
        raise ValueError(f"index must be None, 'ivf' or a HashIndex; got {options.index!r}")
    activation_argument(options.activation)
    choice_argument("rows", options.rows, DTYPES)
    flag_argument("rescore", options.rescore)
    if options.rescore and options.rows == "float32":
        raise ValueError("rescore must be False with rows='float32', which are exact; got True")
    for name in ("num_lists", "num_probed"):
        value = getattr(options, name)
        if value is None:
            continue
        if options.index is None:
            raise ValueError(f"{name} must be None without an index; got {value!r}")
        if is_hash and name == "num_lists":
            raise ValueError(
                f"num_lists must be None with a HashIndex, which has none; got {value!r}"
            )
        integer_argument(name, value, at_least=1)
    number_argument("temperature", options.temperature, above=0)
    if is_hash and options.temperature != 1:
        raise ValueError(f"temperature must be 1 with a HashIndex; got {options.temperature}")
    if options.num_found is not None:
        if not is_hash:
            raise ValueError(
                f"num_found must be None without a HashIndex; got {options.num_found!r}"
            )
        integer_argument("num_found", options.num_found, at_least=k)
    return dataclasses.replace(options, k=k)


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model; got {model!r}")
    if not model.built:
        raise ValueError(
            "model must be built, by a keras.Input or by a call, before it is exported; got "
            f"{model!r}"
        )
    _refuse_several(current())


def _refuse_several(workers: Workers) -> None:
    workers.refuse_several(
        f"export must be called in a single process; got {workers.size} workers. Write the model "
        "by tlo.save_model on all of them, load it in one process, and export it there"
    )


def _check_free(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"folder must not be there, or be empty; got {str(path)!r}")


def _check_ops(function: Any) -> None:
    graph = function.graph.as_graph_def()
    ops = {node.op for node in graph.node}
    ops |= {node.op for each in graph.library.function for node in each.node_def}
    foreign = sorted(op for op in ops if op.startswith("Tfx") or op in _OF_PYTHON)
    if foreign:
        raise ValueError(
            "model must be made of ops that TensorFlow has in every process; got one with "
            f"{', '.join(foreign)}"
        )
