"""Events of parsers: joined within a step."""

from dflash.generation.parsers.events import ArgumentsDelta, CallEnd, CallStart, ContentDelta, ReasoningDelta, add_events


def test_text_that_continues_the_last_event_is_joined_with_it():
    events = []
    for more in (
        [ReasoningDelta("a")],
        [ReasoningDelta("b"), ContentDelta("c")],
        [ContentDelta("d")],
        [CallStart(0, "x", "f"), ArgumentsDelta(0, "{"), ArgumentsDelta(0, "}"), CallEnd(0)],
        [CallStart(1, "y", "f"), ArgumentsDelta(1, "{")],
        [ArgumentsDelta(1, "}"), CallEnd(1)],
    ):
        add_events(events, more)
    calls = [part for i, id_ in enumerate("xy") for part in (CallStart(i, id_, "f"), ArgumentsDelta(i, "{}"), CallEnd(i))]
    assert events == [ReasoningDelta("ab"), ContentDelta("cd"), *calls]
