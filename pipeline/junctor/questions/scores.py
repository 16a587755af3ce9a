"""Of each target the most probable states, their posteriors and the entropy."""

from junctor.model.question import Question

QUESTION = Question(
    "scores",
    "scores",
    maker="junctor.engine.scores:ScoreMaker",
    has_top=True,
    tables="junctor.runs.score_tables:ScoreTables",
    # By measurement: they hardly get smaller by zstd, which takes a third of their time.
    compression="lz4",
    # Three columns for each target take longer than a few thousand numbers in them.
    least_rows=16_384,
    counted="best",
)
