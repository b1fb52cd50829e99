"""Every exercise: the stub is open, the solution passes, each known-wrong answer is rejected with its own hint."""

import pytest

from helpers.exercises import all_exercises, verdict

EXERCISES = all_exercises()


@pytest.mark.parametrize("id", EXERCISES)
def test_untouched_stub_is_open(id):
    assert verdict(id, ...) == ("open", "")


@pytest.mark.parametrize("id", EXERCISES)
def test_solution_passes(id):
    assert verdict(id, EXERCISES[id].solution) == ("solved", "")


@pytest.mark.parametrize("id, name", [(id, name) for id, ex in EXERCISES.items() for name in ex.wrong])
def test_wrong_answer_is_rejected_with_its_hint(id, name):
    answer, words = EXERCISES[id].wrong[name]
    state, text = verdict(id, answer)
    assert state == "wrong"
    assert words in text


@pytest.mark.parametrize("id", EXERCISES)
def test_enough_known_wrong_answers_with_distinct_hints(id):
    hints = [verdict(id, answer)[1] for answer, _ in EXERCISES[id].wrong.values()]
    assert len(hints) >= 3 and len(set(hints)) == len(hints)
