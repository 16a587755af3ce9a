"""The posterior of each target."""

from junctor.model.question import Question

QUESTION = Question("posteriors", "posteriors")
