"""What a peer said is shown so that it can do nothing."""

from __future__ import annotations

import pytest

from headrace.printable import clipped, for_terminal, one_line

HARMFUL = {
    "a line feed": "a\nb",
    "a carriage return": "a\rb",
    "a terminal's command": "\x1b[2J\x1b]0;title\x07",
    "the same by C1": "\x9b2J",
    "a backspace": "password\b\b\b",
    "a NUL": "a\0b",
    "a DEL": "a\x7fb",
    "a line separator": "a\u2028b",
    "a next line": "a\x85b",
    "text that is turned around": "a\u202eb",
    "an isolate": "a\u2066b",
    "something invisible": "a\u200bb",
    "half a surrogate": "a\ud800b",
    "a byte order mark": "\ufeffa",
}


@pytest.mark.parametrize("text", HARMFUL.values(), ids=HARMFUL.keys())
def test_one_line_holds_nothing_that_is_not_printable(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert "\\" in shown


def test_plain_text_of_any_script_stays() -> None:
    for text in ("qwen3:8b", "/v1/chat?x=1", "naïve", "模型", "😀", "a\\b"):
        assert one_line(text) == for_terminal(text) == clipped(text) == text


def test_what_is_long_is_cut_and_counted() -> None:
    assert clipped("x" * 200) == "x" * 200
    assert clipped("x" * 1_000_000) == "x" * 200 + "… (999800 more)"
    assert clipped("\n" * 300, 4) == "\\x0a" * 4 + "… (296 more)"


def test_a_terminal_gets_lines_and_tabs_but_no_commands() -> None:
    assert for_terminal("a\n\tb\x1b[31mc\r\x9bd\x07") == "a\n\tb\\x1b[31mc\\x0d\\x9bd\\x07"
    assert for_terminal("\U0001f469\u200d\U0001f4bb") == "\U0001f469\u200d\U0001f4bb", "joiners stay"
