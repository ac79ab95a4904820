"""Scripts that complete commands, options and their choices in bash, zsh and fish. Pure: made from the parsers, text out.

Each script has the same step: the words before the cursor are followed from command to action (`topics`, `topics list`), and what
that parser takes is offered. Names of topics and groups are not looked up.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["SCRIPTS", "CommandNode", "ValueOption", "command_nodes"]

MAX_HELP: Final = 76
"""Characters of a description in a menu."""


@dataclass(frozen=True, slots=True)
class ValueOption:
    """An option of a command."""

    names: tuple[str, ...]
    """Such as `-q`, `--quiet`."""
    help_text: str
    """Its description."""
    takes_value: bool
    """Whether a value follows."""
    choices: tuple[str, ...] = ()
    """The values that are allowed, if they are known."""
    is_file: bool = False
    """Whether the value is a file or a directory."""


@dataclass(frozen=True, slots=True)
class CommandNode:
    """A command or an action."""

    path: str
    """The words that lead to it, such as `topics list`; empty for the program."""
    options: tuple[ValueOption, ...]
    """Its options."""
    words: Mapping[str, str]
    """What may follow besides options, with descriptions: its actions, or the choices of an argument."""


def command_nodes(parser: argparse.ArgumentParser, path: str = "") -> Iterator[CommandNode]:
    """Yield the parser of a program, and those of all its commands and actions."""
    options, words = [], dict[str, str]()
    children: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            children.update(action.choices)
            words.update({each.dest: _short(each.help) for each in action._choices_actions})
        elif action.option_strings:
            options.append(_option(parser, action))
        elif action.choices:
            words.update({str(choice): "" for choice in action.choices})
    yield CommandNode(path, tuple(options), words)
    for name, child in children.items():
        yield from command_nodes(child, f"{path} {name}".strip())


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> ValueOption:
    expanded = "" if action.help is None else parser._get_formatter()._expand_help(action)
    return ValueOption(
        names=tuple(action.option_strings),
        help_text=_short(expanded),
        takes_value=action.nargs != 0,
        choices=tuple(map(str, action.choices or ())),
        is_file=action.type is Path,
    )


def _short(text: str | None) -> str:
    """Return the beginning of a description, on one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= MAX_HELP else line[: MAX_HELP - 1].rstrip() + "…"


# --- bash -------------------------------------------------------------------------------------------------------------


def _bash(nodes: Sequence[CommandNode]) -> str:
    return f"""\
# bash completion of asyncgroup: eval "$(asyncgroup completion bash)"
_asyncgroup() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} path= option= words= options= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ -n $option ]]; then option=; continue; fi
        case "$path${{path:+ }}${{COMP_WORDS[i]}}" in
            {_paths(nodes)}) path+="${{path:+ }}${{COMP_WORDS[i]}}"; continue ;;
        esac
        case "$path|${{COMP_WORDS[i]}}" in
            {_valued(nodes)}) option=${{COMP_WORDS[i]}} ;;
        esac
    done
    COMPREPLY=()
    case "$path|$option" in
{_lines(nodes, _bash_values)}
        *"|") ;;
        *) return ;;
    esac
    if [[ -z $option ]]; then
        case "$path" in
{_lines(nodes, _bash_words)}
        esac
        if [[ $current == -* ]]; then words=$options; fi
    fi
    _asyncgroup_reply < <(compgen -W "$words" -- "$current")
}}
# bash 3.2, that of macOS, has no mapfile
_asyncgroup_reply() {{
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done
}}
complete -F _asyncgroup asyncgroup
"""


def _paths(nodes: Sequence[CommandNode]) -> str:
    """Return a shell pattern of all commands and actions."""
    return " | ".join(shlex.quote(node.path) for node in nodes if node.path)


def _valued(nodes: Sequence[CommandNode]) -> str:
    """Return a shell pattern of the options that a value follows, each after its command."""
    return " | ".join(
        shlex.quote(f"{node.path}|{name}")
        for node in nodes
        for option in node.options
        if option.takes_value
        for name in option.names
    )


def _lines(nodes: Sequence[CommandNode], line: Callable[[CommandNode], Iterator[str]]) -> str:
    return "\n".join(" " * 8 + each for node in nodes for each in line(node))


def _bash_values(node: CommandNode) -> Iterator[str]:
    for option in node.options:
        pattern = " | ".join(shlex.quote(f"{node.path}|{name}") for name in option.names)
        if option.is_file:
            yield f'{pattern}) _asyncgroup_reply < <(compgen -f -- "$current"); return ;;'
        elif option.choices:
            yield f"{pattern}) words={shlex.quote(' '.join(option.choices))} ;;"


def _bash_words(node: CommandNode) -> Iterator[str]:
    options = " ".join(name for option in node.options for name in option.names)
    yield (
        f"    {shlex.quote(node.path)}) words={shlex.quote(' '.join(node.words))} options={shlex.quote(options)} ;;"
    )


# --- zsh --------------------------------------------------------------------------------------------------------------


def _zsh(nodes: Sequence[CommandNode]) -> str:
    return f"""\
#compdef asyncgroup
# zsh completion of asyncgroup: eval "$(asyncgroup completion zsh)" after compinit
_asyncgroup() {{
    local place= option= word
    local -a candidates options
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        if [[ -n $option ]]; then option=; continue; fi
        case "$place${{place:+ }}$word" in
            ({_paths(nodes)}) place+="${{place:+ }}$word"; continue ;;
        esac
        case "$place|$word" in
            ({_valued(nodes)}) option=$word ;;
        esac
    done
    case "$place|$option" in
{_lines(nodes, _zsh_values)}
        (*"|") ;;
        (*) return ;;
    esac
    if [[ -z $option ]]; then
        case "$place" in
{_lines(nodes, _zsh_words)}
        esac
        if [[ $PREFIX == -* ]]; then candidates=("${{(@)options}}"); fi
    fi
    _describe asyncgroup candidates
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _asyncgroup "$@"; else compdef _asyncgroup asyncgroup; fi
"""


def _zsh_values(node: CommandNode) -> Iterator[str]:
    for option in node.options:
        pattern = " | ".join(shlex.quote(f"{node.path}|{name}") for name in option.names)
        if option.is_file:
            yield f"({pattern}) _files; return ;;"
        elif option.choices:
            yield f"({pattern}) candidates=({' '.join(map(shlex.quote, option.choices))}) ;;"


def _zsh_words(node: CommandNode) -> Iterator[str]:
    words = " ".join(_described(word, text) for word, text in node.words.items())
    options = " ".join(_described(name, option.help_text) for option in node.options for name in option.names)
    yield f"    ({shlex.quote(node.path)}) candidates=({words}) options=({options}) ;;"


def _described(name: str, text: str) -> str:
    return shlex.quote(f"{name}:{text}" if text else name)


# --- fish -------------------------------------------------------------------------------------------------------------


def _fish(nodes: Sequence[CommandNode]) -> str:
    paths = " ".join(_fish_quoted(node.path) for node in nodes if node.path)
    return f"""\
# fish completion of asyncgroup: asyncgroup completion fish | source
set -g __asyncgroup_paths {paths}
function __asyncgroup_at --description 'Whether the words before the cursor lead to this command'
    set -l words (commandline -opc)
    set -l path
    for word in $words[2..-1]
        if contains -- "$path $word" ' '$__asyncgroup_paths
            set path "$path $word"
        end
    end
    test "$path" = "$argv[1]"
end
complete -c asyncgroup -f
{chr(10).join(line for node in nodes for line in _fish_lines(node))}
"""


def _fish_lines(node: CommandNode) -> Iterator[str]:
    place = f" {node.path}" if node.path else ""
    begin = f"complete -c asyncgroup -n {_fish_quoted(f'__asyncgroup_at {_fish_quoted(place)}')}"
    for word, text in node.words.items():
        yield f"{begin} -a {_fish_quoted(word)}" + (f" -d {_fish_quoted(text)}" if text else "")
    for option in node.options:
        names = " ".join(
            f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
        )
        value = ""
        if option.is_file:
            value = " -rF"
        elif option.choices:
            value = f" -xa {_fish_quoted(' '.join(option.choices))}"
        elif option.takes_value:
            value = " -x"
        yield f"{begin} {names}{value} -d {_fish_quoted(option.help_text)}"


def _fish_quoted(text: str) -> str:
    """Return text in single quotes, in which fish knows only two escapes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: Final[Mapping[str, Callable[[Sequence[CommandNode]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
"""For each shell the function that returns its script."""
