# SPDX-License-Identifier: Apache-2.0
"""The command line: `tfx-largeout`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tfx_largeout.compare.data import WORDNET, find_files
from tfx_largeout.compare.earlier_run import EarlierRun
from tfx_largeout.compare.head_options import (
    HEAD_OPTIONS,
    choose_options,
    positive_integer,
    positive_number,
    with_rates,
    without_unused,
)
from tfx_largeout.compare.head_table import DEFAULT_HEADS, HEAD_TABLE, head_row
from tfx_largeout.compare.job import EXIT_INTERRUPTED, EXIT_SUCCESS, Job, run_job
from tfx_largeout.compare.machine import describe_versions
from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.own_head import find_row, name_of
from tfx_largeout.compare.peers import PEERS
from tfx_largeout.compare.runner import DataError
from tfx_largeout.compare.settings import FEATURES, SCHEDULES, DataSettings, TrainingSettings
from tfx_largeout.distribute.launcher import launch

EXIT_USAGE = 2
_ROWS = {row.name for row in HEAD_TABLE}
_LONG: dict[str, Any] = {
    "heads": dict.fromkeys((*DEFAULT_HEADS, "sampled_softmax", "midx", "exact_softmax"), ""),
    "seeds": 3,
    "budget": 60.0,
}

_DESCRIPTION = """\
Trains several output layers (heads) on the same data, with the same trunk, the same order of the
examples and the same seed, one after the other, and compares them: a table, CSV, JSON, plots and
TensorBoard runs."""

_EXAMPLES = """\
examples:
  tfx-largeout compare
  tfx-largeout compare --heads exact_softmax,midx --epochs 5
  tfx-largeout compare --data path/to/EURLex-4K --head-learning-rate full_softmax=1e-2
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfx-largeout`.

    Args:
        argv: The arguments, without the name of the program. Default: those of the process.

    Returns:
        The exit code: 0; 1 if a head failed; 2 for a wrong argument or malformed data; 130 after
        Ctrl-C; of `launch`, that of the first worker that failed.
    """
    parser, compare = _build_parsers()
    try:
        arguments = parser.parse_args(argv)
        if arguments.command == "launch":
            return launch(arguments.script, arguments.workers, arguments.restarts)
        if arguments.list:
            print(_list_heads())
            return EXIT_SUCCESS
        return _compare(compare, arguments, _given(argv))
    except SystemExit as exit:
        return int(exit.code or 0)
    except DataError as error:
        print(f"\n{compare.prog}: the data can't be used: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _given(argv: Sequence[str] | None) -> dict[str, Any]:
    """Returns the arguments that the user gave, be it with the value of the default."""
    parser, compare = _build_parsers()
    for action in compare._actions:
        action.default = argparse.SUPPRESS
    return vars(parser.parse_args(argv))


def _compare(parser: _Parser, arguments: argparse.Namespace, given: dict[str, Any]) -> int:
    if arguments.overwrite and arguments.output is None:
        parser.error("--overwrite must come with --output; got it alone")
    if arguments.long:
        for name, value in _LONG.items():
            if name not in given:
                setattr(arguments, name, value)
    earlier = None
    if arguments.add_to is not None:
        earlier = _read_earlier(parser, arguments, given)
    heads, chosen = _choose_heads(parser, arguments)
    if earlier is None:
        data_name, data = _choose_data(parser, arguments)
        training = _choose_training(arguments)
    else:
        data_name, data, training = earlier.data_name, earlier.data, earlier.training
    missing = () if "peers" in given or earlier else tuple(_peers_that_are(installed=False))
    functions = {name: function for name, function in arguments.heads.items() if function}
    job = Job(heads, data_name, data, training, tuple(arguments.peers), chosen, missing, functions)
    _check_heads(parser, job)
    flag = "--output" if earlier is None else "--add-to"
    with contextlib.ExitStack() as stack:
        try:
            path = arguments.output if earlier is None else arguments.add_to
            folder = OutputFolder(path, arguments.overwrite, add=earlier is not None)
            folder.make()
            stack.enter_context(folder.claimed())
        except (OSError, ValueError) as error:
            parser.error(f"{flag} {error}")
        try:
            return run_job(job, folder, open_page=arguments.open, earlier=earlier)
        except DataError:
            folder.undo()
            raise


def _read_earlier(
    parser: _Parser, arguments: argparse.Namespace, given: dict[str, Any]
) -> EarlierRun:
    """Returns the run to which heads are added, without those that are trained again."""
    for name in ("output", "overwrite", "long"):
        if name in given:
            parser.error(f"--{name} must not be given with --add-to; got both")
    if "heads" not in given and "peers" not in given:
        parser.error("--add-to must come with --heads or --peers; got neither")
    for name in ("heads", "peers"):
        if name not in given:
            setattr(arguments, name, {} if name == "heads" else [])
    try:
        earlier = EarlierRun.read(OutputFolder(arguments.add_to, add=True).results_json)
    except (OSError, ValueError) as error:
        parser.error(f"--add-to {error}")
    for name, value in given.items():
        if earlier.has(name) and value != earlier.setting(name):
            parser.error(
                f"--{name.replace('_', '-')} must be left out with --add-to, or be that of the "
                f"results there, {earlier.setting(name)!r}; got {value!r}"
            )
    for name in ("heads", "peers"):
        try:
            earlier = earlier.without(getattr(arguments, name))
        except ValueError as error:
            parser.error(f"--{name} {error}")
    return earlier


def _choose_heads(
    parser: _Parser, arguments: argparse.Namespace
) -> tuple[dict[str, dict[str, Any]], dict[str, tuple[str, ...]]]:
    """Returns the options of each head, and the names of those that were chosen."""
    rows = {head: find_row(head, function) for head, function in arguments.heads.items()}
    heads = {head: row.default_options for head, row in rows.items()}
    chosen: dict[str, tuple[str, ...]] = dict.fromkeys(heads, ())
    for option in HEAD_OPTIONS:
        used = {head: without_unused(options) for head, options in heads.items()}
        texts = getattr(arguments, option.name)
        if texts:
            try:
                values = choose_options(option, texts, used)
            except ValueError as error:
                parser.error(str(error))
            for head, options in values.items():
                heads[head].update(options)
                chosen[head] += (option.name,)
    return {
        head: with_rates(without_unused(options), rows[head].default_options, chosen[head])
        for head, options in heads.items()
    }, chosen


def _check_heads(parser: _Parser, job: Job) -> None:
    """Refuses options that do not go together before the first head is trained."""
    for head, options in job.heads.items():
        if head in job.functions:  # what it makes may be for these data alone
            continue
        try:
            head_row(head).check(options, job.training)
        except ValueError as error:
            parser.error(f"{head}: {error}")


def _choose_data(parser: _Parser, arguments: argparse.Namespace) -> tuple[str, DataSettings]:
    shipped = arguments.train is None and arguments.data in (None, *WORDNET)
    features = arguments.features or FEATURES[not shipped]
    rest = (features, arguments.propensity_a, arguments.propensity_b, arguments.hold_out)
    if (arguments.train is None) != (arguments.test is None):
        given = "--test" if arguments.train is None else "--train"
        parser.error(f"--train and --test must be given together; got {given} alone")
    if arguments.train is not None:
        if arguments.data is not None:
            parser.error("--data must not be given with --train and --test; got all three")
        for flag, file in (("--train", arguments.train), ("--test", arguments.test)):
            _check_readable(parser, flag, file)
        return arguments.train, DataSettings(None, arguments.train, arguments.test, *rest)
    name = arguments.data or next(iter(WORDNET))
    if name in WORDNET:
        return name, DataSettings(WORDNET[name], "", "", *rest)
    try:
        train, test = find_files(name)
    except (OSError, ValueError) as error:
        parser.error(f"--data {error}")
    return name, DataSettings(None, train, test, *rest)


def _check_readable(parser: _Parser, flag: str, file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        parser.error(f"{flag} must be a file that can be read; got {file!r} ({error.strerror})")


def _choose_training(arguments: argparse.Namespace) -> TrainingSettings:
    evaluations = arguments.evaluations
    if evaluations is None:
        evaluations = max(4, round(arguments.epochs or 0))
    return TrainingSettings(
        budget=None if arguments.epochs is not None else arguments.budget,
        epochs=arguments.epochs,
        evaluations=evaluations,
        batch_size=arguments.batch_size,
        hidden=arguments.hidden,
        dropout=arguments.dropout,
        schedule=arguments.schedule,
        seed=arguments.seed,
        workers=arguments.workers,
        seeds=arguments.seeds,
    )


def _list_heads() -> str:
    lines = []
    for row in HEAD_TABLE:
        options = without_unused(row.default_options)
        defaults = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in options.items())
        lines += [f"{row.name}", f"    {row.description}", f"    defaults: {defaults}"]
    lines.append("peers")
    for name, peer in PEERS.items():
        missing = "" if peer.installed else f": pip install {peer.package}"
        lines.append(f"    {name}{missing}")
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message.removeprefix('argument ')}\n")


def _type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Lets argparse show the sentence of a parser's ValueError."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def _heads(text: str) -> dict[str, str]:
    """Returns the names of heads, each with the function of a user's own, or empty text."""
    heads: dict[str, str] = {}
    for part in text.split(","):
        function = part if ":" in part else ""
        name = name_of(part)
        find_row(name, function)
        if name in heads:
            raise ValueError(f"must name each head once; got {text!r}")
        if function and name in _ROWS:
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


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise ValueError(f"must be an integer in [0, 2147483648); got {text!r}")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ValueError(f"must be a number in [0, 1); got {text!r}")
    return value


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
        "on this machine. If one fails, all are ended, and started again if --restarts says so.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    workers = {"type": _type(positive_integer), "metavar": "N", "help": "how many workers"}
    add("--workers", required=True, **workers)
    add(
        "--restarts",
        type=_type(_count),
        default=0,
        metavar="N",
        help="how many times all are started again after one has failed (default: 0)",
    )
    # PARSER is one argument and all behind it; REMAINDER would lose a "--" that comes first.
    add("script", nargs=argparse.PARSER, metavar="SCRIPT", help="the script, and its arguments")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--list", action="store_true", help="list the heads with their defaults, and exit")
    add(
        "--heads",
        type=_type(_heads),
        default=dict.fromkeys(DEFAULT_HEADS, ""),
        metavar="HEAD,...",
        help="which heads, in this order; package.module:function is one of your own: "
        "function(num_classes, label_counts, seed) returns (head, loss) "
        f"(default: {','.join(DEFAULT_HEADS)})",
    )

    add(
        "--peers",
        type=_type(_peers),
        default=_peers_that_are(installed=True),
        metavar="PEER,...",
        help=f"what comes after the heads, by its own defaults: {', '.join(PEERS)}, or none "
        "(default: those that are installed)",
    )

    length = parser.add_argument_group("how long").add_mutually_exclusive_group()
    length.add_argument(
        "--budget",
        type=_type(positive_number),
        default=25.0,
        metavar="SECONDS",
        help="training time of each head, without evaluation and compilation (default: 25)",
    )
    length.add_argument(
        "--epochs",
        type=_type(positive_number),
        metavar="N",
        help="instead: the same number of epochs for each head, may be a fraction",
    )

    add(
        "--long",
        action="store_true",
        help=f"{_LONG['seeds']} seeds of {len(_LONG['heads'])} heads, "
        f"{_LONG['budget']:g} s each: about half an hour; what else is given counts",
    )

    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="DATA",
        help=f"{' or '.join(WORDNET)} (shipped), or a folder with train.txt and test.txt in the "
        f"format of the extreme classification repository, plain, .gz or .xz "
        f"(default: {next(iter(WORDNET))})",
    )
    data.add_argument("--train", metavar="FILE", help="training examples, instead of --data")
    data.add_argument("--test", metavar="FILE", help="test examples, instead of --data")
    data.add_argument(
        "--features",
        choices=FEATURES,
        help="weights of the features: TF-IDF of log(1 + count), with rows of length 1, or as in "
        f"the file (default: {FEATURES[0]} for {', '.join(WORDNET)}, else {FEATURES[1]})",
    )
    data.add_argument(
        "--hold-out",
        type=_type(_share),
        default=0.0,
        metavar="SHARE",
        help="evaluate on this share of the training examples, which is held out, and not on the "
        "test set (default: 0)",
    )
    data.add_argument("--propensity-a", type=_type(positive_number), default=0.55, metavar="A")
    data.add_argument(
        "--propensity-b",
        type=_type(positive_number),
        default=1.5,
        metavar="B",
        help="constants of the propensity model behind PSP@1 (default: 0.55, 1.5)",
    )

    training = parser.add_argument_group("training, the same for all heads")
    for flag, default, text in (
        ("--batch-size", 512, "examples a step"),
        ("--hidden", 256, "width of the trunk, one layer of ReLUs"),
        ("--evaluations", None, "evaluations in training (default: 4, or one an epoch)"),
    ):
        more = "" if default is None else f" (default: {default})"
        training.add_argument(
            flag, type=_type(positive_integer), default=default, metavar="N", help=text + more
        )
    training.add_argument(
        "--dropout",
        type=_type(_share),
        default=0.5,
        metavar="SHARE",
        help="share of the trunk's outputs that are left out in each step (default: 0.5)",
    )
    training.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default=SCHEDULES[0],
        help="learning rates of trunk and head: down to 2%% in a line over the training, by its "
        f"clock, or constant (default: {SCHEDULES[0]})",
    )
    training.add_argument(
        "--workers",
        type=_type(positive_integer),
        default=1,
        metavar="N",
        help="processes over which the classes of each head are spread (default: 1)",
    )
    training.add_argument("--seed", type=_type(_seed), default=0, metavar="N", help="(default: 0)")
    training.add_argument(
        "--seeds",
        type=_type(positive_integer),
        default=1,
        metavar="N",
        help="train each head with N seeds, from --seed on, and report means (default: 1)",
    )

    options = parser.add_argument_group(
        "options of heads",
        "VALUE for all heads that have the option, or HEAD=VALUE; several with commas. --list has "
        "the defaults.",
    )
    for option in HEAD_OPTIONS:
        options.add_argument(option.flag, action="append", metavar="[HEAD=]VALUE", help=option.help)

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
        help="add heads to the results in FOLDER, with data and training as they are there",
    )
    output.add_argument(
        "--open", action="store_true", help="show comparison.html, all as one page, in a browser"
    )
