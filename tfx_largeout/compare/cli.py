# SPDX-License-Identifier: Apache-2.0
"""The command line: `tfx-largeout`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from tfx_largeout.compare.comparison import OutputFolder, describe_versions
from tfx_largeout.compare.data import find_files
from tfx_largeout.compare.head_options import (
    HEAD_OPTIONS,
    choose_options,
    with_rates,
    without_unused,
)
from tfx_largeout.compare.head_table import DEFAULT_HEADS, HEAD_TABLE, head_row
from tfx_largeout.compare.job import EXIT_INTERRUPTED, EXIT_SUCCESS, EarlierRun, Job, run_job
from tfx_largeout.compare.peers import PEERS
from tfx_largeout.compare.settings import (
    FEATURES,
    WORDNET,
    DataSettings,
    TrainingSettings,
    flag_of,
    positive_integer,
)
from tfx_largeout.compare.worker import DataError
from tfx_largeout.distribute.launcher import launch

EXIT_USAGE = 2
_LONG: dict[str, Any] = {
    "heads": dict.fromkeys((*DEFAULT_HEADS, "sampled_softmax", "midx", "exact_softmax"), ""),
    "seeds": 3,
    "budget": 60.0,
}

_DESCRIPTION = """\
Trains several output layers (heads) one after the other, with the same data, hidden layers, order
of examples and seed, and compares them: a table, CSV, JSON, plots and TensorBoard runs."""

_EXAMPLES = """\
examples:
  tfx-largeout compare
  tfx-largeout compare --heads exact_softmax,midx --epochs 5
  tfx-largeout compare --data path/to/EURLex-4K --head-learning-rate full_softmax=1e-2
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfx-largeout`.

    Args:
        argv: The arguments, without the name of the program. Default: the arguments of the process.

    Returns:
        The exit code: 0; 1 if a head failed; 2 for a wrong argument or malformed data; 130 after
        Ctrl-C; of `launch`, the exit code of the first worker that failed.
    """
    parser, compare = _build_parsers()
    try:
        arguments = parser.parse_args(argv)
        if arguments.command == "launch":
            return launch(arguments.script, arguments.workers, arguments.restarts)
        if arguments.list:
            print(_list_heads())
            return EXIT_SUCCESS
        return _compare(arguments, _given(argv))
    except SystemExit as exit:
        return int(exit.code or 0)
    except _UsageError as error:
        print(f"{compare.prog}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except DataError as error:
        print(f"\n{compare.prog}: the data can't be used: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _given(argv: Sequence[str] | None) -> dict[str, Any]:
    """Returns the arguments that the user passed, even if equal to the default."""
    parser, compare = _build_parsers()
    for action in compare._actions:
        action.default = argparse.SUPPRESS
    return vars(parser.parse_args(argv))


class _UsageError(Exception):
    """An error in arguments, as one sentence."""


@contextlib.contextmanager
def _refusal(start: str) -> Iterator[None]:
    """Turns an error into an error of arguments; the sentence begins with their names."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _UsageError(f"{start}{error}") from None


def _compare(arguments: argparse.Namespace, given: dict[str, Any]) -> int:
    if arguments.overwrite and arguments.output is None:
        raise _UsageError("--overwrite must come with --output; got it alone")
    others = _LONG if arguments.long else {}
    if arguments.add_to is not None:
        for name in ("output", "overwrite", "long"):
            if name in given:
                raise _UsageError(f"--{name} must not be given with --add-to; got both")
        if "heads" not in given and "peers" not in given:
            raise _UsageError("--add-to must come with --heads or --peers; got neither")
        others = {"heads": {}, "peers": []}
    vars(arguments).update({**others, **given})
    if arguments.add_to is None:
        earlier, flag, path = None, "--output ", arguments.output
        data_name, data = _choose_data(arguments)
        training = _choose_training(arguments)
    else:
        earlier, flag, path = _read_earlier(arguments, given), "--add-to ", arguments.add_to
        data_name, data, training = earlier.data_name, earlier.data, earlier.training
    heads, chosen = _choose_heads(arguments, training)
    missing = () if "peers" in given or earlier else tuple(_peers_that_are(installed=False))
    functions = {name: function for name, function in arguments.heads.items() if function}
    job = Job(heads, data_name, data, training, tuple(arguments.peers), chosen, missing, functions)
    with contextlib.ExitStack() as stack:
        with _refusal(flag):
            folder = OutputFolder(path, arguments.overwrite, add=earlier is not None)
            folder.make()
            stack.enter_context(folder.claimed())
        try:
            return run_job(job, folder, open_page=arguments.open, earlier=earlier)
        except DataError:
            folder.undo()
            raise


def _read_earlier(arguments: argparse.Namespace, given: dict[str, Any]) -> EarlierRun:
    """Returns the run to which heads are added, without heads that are trained again."""
    with _refusal("--add-to "):
        earlier = EarlierRun.read(OutputFolder(arguments.add_to, add=True).results_json)
    for name, value in earlier.arguments.items():
        if name in given and value != given[name]:
            raise _UsageError(
                f"{flag_of(name)} must be left out with --add-to, or be as in the results "
                f"there, {value!r}; got {given[name]!r}"
            )
    for name in ("heads", "peers"):
        with _refusal(f"--{name} "):
            earlier = earlier.without(getattr(arguments, name))
    return earlier


def _choose_heads(
    arguments: argparse.Namespace, training: TrainingSettings
) -> tuple[dict[str, dict[str, Any]], dict[str, tuple[str, ...]]]:
    """Returns the consistent options of each head, and the names of the chosen ones."""
    rows = {head: head_row(head, function) for head, function in arguments.heads.items()}
    heads = {head: row.default_options for head, row in rows.items()}
    chosen: dict[str, tuple[str, ...]] = dict.fromkeys(heads, ())
    for option in HEAD_OPTIONS:
        used = {head: without_unused(options) for head, options in heads.items()}
        texts = getattr(arguments, option.name)
        if texts:
            with _refusal(""):
                values = choose_options(option, texts, used)
            for head, options in values.items():
                heads[head].update(options)
                chosen[head] += (option.name,)
    for head, row in rows.items():
        heads[head] = with_rates(without_unused(heads[head]), row.default_options, chosen[head])
        if not arguments.heads[head]:  # a custom head may work only for these data
            with _refusal(f"{head}: "):
                row.check(heads[head], training)
    return heads, chosen


def _choose_data(arguments: argparse.Namespace) -> tuple[str, DataSettings]:
    name, train, test = arguments.data, arguments.train, arguments.test
    if (train is None) != (test is None):
        given = "--test" if train is None else "--train"
        raise _UsageError(f"--train and --test must be given together; got {given} alone")
    wordnet = None
    if train is not None:
        if name is not None:
            raise _UsageError("--data must not be given with --train and --test; got all three")
        for flag, files in (("--train", train), ("--test", test)):
            if len(files) > 2:
                rule = f"{flag} must be one file, or one of features and one of labels"
                raise _UsageError(f"{rule}; got {len(files)}")
            for file in files:
                try:
                    open(file, "rb").close()
                except OSError as error:
                    rule = f"{flag} must be a file that can be read"
                    raise _UsageError(f"{rule}; got {file!r} ({error.strerror})") from None
        name = train[0]
    else:
        name = name or next(iter(WORDNET))
        wordnet = WORDNET.get(name)
        if wordnet is None:
            with _refusal("--data "):
                train, test = find_files(name)
    features = arguments.features or FEATURES[wordnet is None]
    rest = (features, arguments.propensity_a, arguments.propensity_b, arguments.hold_out)
    return name, DataSettings(wordnet, train or (), test or (), *rest)


def _choose_training(arguments: argparse.Namespace) -> TrainingSettings:
    names = [field.name for field in dataclasses.fields(TrainingSettings)]
    values = {name: getattr(arguments, name) for name in names}
    if arguments.epochs is not None:
        values["budget"] = None
    if arguments.evaluations is None:
        values["evaluations"] = max(4, round(arguments.epochs or 0))
    return TrainingSettings(**values)


def _list_heads() -> str:
    lines = []
    for row in HEAD_TABLE:
        options = without_unused(row.default_options)
        defaults = " ".join(f"{flag_of(k)} {v}" for k, v in options.items())
        lines += [f"{row.name}", f"    {row.description}", f"    defaults: {defaults}"]
    lines.append("peers")
    for name, peer in PEERS.items():
        missing = "" if peer.installed else f": pip install {peer.package}"
        lines.append(f"    {name}{missing}")
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Prints an error as one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message.removeprefix('argument ')}\n")


def _type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Makes argparse show the message of a parser's ValueError."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def _heads(text: str) -> dict[str, str]:
    """Returns the names of heads, each with the function of a custom head, or ""."""
    heads: dict[str, str] = {}
    for part in text.split(","):
        function = part if ":" in part else ""
        name = part.rpartition(":")[2]
        head_row(name, function)
        if name in heads:
            raise ValueError(f"must name each head once; got {text!r}")
        if function and any(row.name == name for row in HEAD_TABLE):
            raise ValueError(f"must be a function of another name than a head has; got {part!r}")
        heads[name] = function
    return heads


def _peers_that_are(installed: bool) -> list[str]:
    return [name for name, peer in PEERS.items() if peer.installed == installed]


def _peers(text: str) -> list[str]:
    if text == "none":
        return []
    names = text.split(",")
    for name in names:
        if name not in PEERS:
            choices = ", ".join(PEERS)
            raise ValueError(f"must be none or some of {choices}; got {name!r}")
        if not PEERS[name].installed:
            raise ValueError(
                f"must be installed; got {name!r}: `pip install {PEERS[name].package}`"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"must name each peer once; got {text!r}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"must be an integer of at least 0; got {text!r}")
    return int(text)


def _build_parsers() -> tuple[argparse.ArgumentParser, _Parser]:
    parser = _Parser(prog="tfx-largeout", allow_abbrev=False)
    version = f"tfx-largeout {describe_versions()['tfx_largeout']}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    compare = commands.add_parser(
        "compare",
        help="train several heads side by side, and compare them",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_arguments(compare)
    _add_launch(commands)
    return parser, compare


def _add_launch(commands: Any) -> None:
    parser = commands.add_parser(
        "launch",
        help="run a script as several workers on this machine",
        description="Runs a Python script that calls tlo.distribute.connect() as several workers "
        "on this machine, each with a share of cores and GPUs. If one fails, all are ended, and "
        "started again if --restarts says so.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    integer = _type(positive_integer)
    add("--workers", required=True, type=integer, metavar="N", help="how many workers")
    add(
        "--restarts",
        type=_type(_count),
        default=0,
        metavar="N",
        help="how many times all are started again after one has failed (default: 0)",
    )
    # PARSER takes one argument and all after it; REMAINDER would drop a leading "--".
    add("script", nargs=argparse.PARSER, metavar="SCRIPT", help="the script, and its arguments")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--list", action="store_true", help="list the heads with their defaults, and exit")
    add(
        "--heads",
        type=_type(_heads),
        default=dict.fromkeys(DEFAULT_HEADS, ""),
        metavar="HEAD,...",
        help="names of heads, in this order; package.module:function is a head of yours: "
        "function(num_classes, label_counts, seed) returns (head, loss) "
        f"(default: {','.join(DEFAULT_HEADS)})",
    )

    add(
        "--peers",
        type=_type(_peers),
        default=_peers_that_are(installed=True),
        metavar="PEER,...",
        help=f"other methods, run after the heads with their defaults: {', '.join(PEERS)}, or "
        "none (default: all that are installed)",
    )

    length = parser.add_argument_group("how long").add_mutually_exclusive_group()
    _add_fields(length, TrainingSettings, "budget", "epochs")

    add(
        "--long",
        action="store_true",
        help=f"{_LONG['seeds']} seeds of {len(_LONG['heads'])} heads, "
        f"{_LONG['budget']:g} s each: about half an hour; other options still apply",
    )

    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="DATA",
        help=f"{' or '.join(WORDNET)} (shipped), or a folder in the format of the extreme "
        "classification repository: train.txt and test.txt, or trn_X_Xf.txt, trn_X_Y.txt, "
        "tst_X_Xf.txt and tst_X_Y.txt, plain, .gz, .xz or .bz2, or the last four as .npz "
        f"(default: {next(iter(WORDNET))})",
    )
    for flag, what in (("--train", "training"), ("--test", "test")):
        data.add_argument(
            flag,
            nargs="+",
            metavar="FILE",
            help=f"{what} examples in one file, or their features and their labels, instead of "
            "--data",
        )
    _add_fields(data, DataSettings, "features", "hold_out", "propensity_a", "propensity_b")

    training = parser.add_argument_group("training, the same for all heads")
    names = ("batch_size", "hidden", "evaluations", "dropout", "schedule", "workers", "seed")
    _add_fields(training, TrainingSettings, *names, "seeds")

    options = parser.add_argument_group(
        "options of heads",
        "VALUE for all heads that have the option, or HEAD=VALUE; several with commas. --list has "
        "the defaults.",
    )
    for option in HEAD_OPTIONS:
        flag = flag_of(option.name)
        options.add_argument(flag, action="append", metavar="[HEAD=]VALUE", help=option.help)

    output = parser.add_argument_group("results")
    output.add_argument(
        "--output", metavar="FOLDER", help="(default: a new one, runs/compare-<date>-<time>)"
    )
    output.add_argument(
        "--overwrite", action="store_true", help="replace the results of an earlier run in FOLDER"
    )
    output.add_argument(
        "--add-to",
        metavar="FOLDER",
        help="add heads to the results in FOLDER, with the same data and training settings",
    )
    output.add_argument(
        "--open", action="store_true", help="show comparison.html, all as one page, in a browser"
    )


def _add_fields(group: Any, kind: Any, *names: str) -> None:
    """Adds options from the fields of settings."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in names:
        given = dict(fields[name].metadata)
        if "type" in given:
            given["type"] = _type(given["type"])
        group.add_argument(flag_of(name), **given)
