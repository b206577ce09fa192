"""The scripted model's schedule: the same script is the same answer."""

from __future__ import annotations

from headrace_lab.model.script import SIZES, Script, body_of, event, offsets, parse


def test_a_schedule_is_steady_unless_it_is_told_otherwise() -> None:
    assert [round(at, 3) for at in offsets(Script(events=4, interval_s=0.02))] == [0.0, 0.02, 0.04, 0.06]


def test_silence_moves_all_that_follows() -> None:
    made = offsets(Script(events=4, interval_s=0.02, silences=((2, 1.0),)))
    assert [round(at, 3) for at in made] == [0.0, 0.02, 1.04, 1.06]


def test_a_burst_is_due_at_once() -> None:
    made = offsets(Script(events=6, interval_s=0.02, bursts=((1, 3),)))
    assert [round(at, 3) for at in made] == [0.0, 0.02, 0.02, 0.02, 0.04, 0.06]


def test_jitter_is_drawn_by_seed_and_never_goes_back() -> None:
    script = Script(events=50, interval_s=0.02, jitter=2.0, seed=7)
    made = list(offsets(script))
    assert made == list(offsets(script)) == sorted(made)
    assert made != list(offsets(Script(events=50, interval_s=0.02, jitter=2.0, seed=8)))


def test_sizes_are_those_of_a_family_of_servers() -> None:
    for shape in ("openai", "ollama"):
        script = Script(events=100, shape=shape, seed=3)  # type: ignore[arg-type]
        sizes = {len(event(script, number, 10**15)) for number in range(99)}
        assert len(sizes) > 10
        # The stamps need their room, however small an event is.
        assert max(sizes) <= max(SIZES[shape][1], 150)
    anthropic = event(Script(shape="anthropic", note_due=True), 0, 10**15, 10**15)
    assert anthropic.startswith(b'event: content_block_delta\ndata: {"n":0,"t":1000000000000000,"due":')
    assert body_of(Script(events=1, shape="ollama")).count(b"data:") == 0


def test_an_event_says_when_it_was_due_if_it_is_asked_to() -> None:
    assert b'"due":5,' in event(Script(note_due=True), 0, 7, 5)
    assert b"due" not in event(Script(), 0, 7, 5)


def test_a_script_is_read_from_json() -> None:
    assert parse('{"events": 3, "silences": [[1, 0.5]]}') == Script(events=3, silences=((1, 0.5),))
