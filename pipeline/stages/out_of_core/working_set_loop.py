"""The loop beyond memory: solve on a working set, price the candidates outside it, admit and drop, until certified.

Column generation (mathematics.md, eq. 70). What differs between the ways to do it is a rule (`pricing`). The gap that
ends the loop is over all candidates. Every round is committed under its name (round-000, …), so that a resumed run
goes on with the last whole one, to the same bytes.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.stages.out_of_core.pricing import Priced, PricingRule, Record
from pipeline.stages.out_of_core.working_set import WorkingSet, drop, grow, latest, round_name
from pipeline.stages.run_state import Run
from pipeline.stages.workspace import SOLVE
from storage.errors import ANEW, CorruptDataError
from storage.records import read_markers, write_marker


def grow_until_certified(rule: PricingRule) -> tuple[Priced, list[Record]]:
    """Return the last round of the loop, and the records of all.

    The loop ends when the relative gap of every solve over all candidates is within the tolerance, or when nothing is
    left to admit. Raises CorruptDataError where a resumed run lacks something of its earlier rounds.
    """
    run, current = rule.run, latest(rule.run, rule.kind, rule.parts)
    records = [] if current is None else earlier_records(run, rule, current.index)
    current = current or rule.first()
    while True:
        priced = rule.price(current, records)
        change = rule.admit(priced)
        records.append(_commit_record(rule, current, *rule.record(priced, change)))
        if not len(change.admitted):
            return priced, records
        before, name = current.name, round_name(rule.kind, current.index + 1)
        current = grow(run, name, current, change.stay, change.admitted, rule.parts)
        del priced  # with it the last working set: a file that is mapped may not go
        drop(run, before, rule.parts)


def _commit_record(rule: PricingRule, current: WorkingSet, record: Record, words: str) -> Record:
    """Commit and log what a round did; return the record."""
    write_marker(rule.run.layout.markers(rule.markers), current.name, record)
    rule.run.metric(stage=SOLVE, **record)
    rule.run.log(words)
    return record


def earlier_records(run: Run, rule: type[PricingRule] | PricingRule, count: int) -> list[Record]:
    """Return the records of the first rounds; they are not done again, so none may be lost.

    Raises CorruptDataError where one is damaged or missing.
    """
    folder = run.layout.markers(rule.markers)
    done = read_markers(folder)
    names = [round_name(rule.kind, index) for index in range(count)]
    for name in names:
        if name not in done:
            raise CorruptDataError(f"{folder}: the marker of {name} is damaged or missing; {ANEW}", file=str(folder))
    for warning in done.warnings:  # of the marker of the round that is done again
        run.warn(warning)
    return [dict(done[name]) for name in names]


def summaries_over_all(priced: Priced, tolerance: float) -> list[dict[str, Any]]:
    """Return the summaries of the solves with objective and gap over all candidates."""
    updated = []
    for summary, certificate in zip(priced.summaries, priced.proofs, strict=True):
        converged, point = certificate.relative_gap <= tolerance, summary["points"][-1]
        status = point["status"]
        if not converged and point["converged"]:
            status = "the working set has no room for the candidates it lacks; raise --memory-limit or --penalty"
        facts = {"objective": certificate.objective, "relative_gap": certificate.relative_gap}
        updated.append({**summary, "points": [{**point, **facts, "converged": converged, "status": status}]})
    return updated


def count_columns(records: Sequence[Record], n_candidates: int) -> dict[str, int]:
    """Return how many candidates there are, how many columns were made on the fly and materialised, how many active."""
    return {
        "candidates": n_candidates,
        "on_the_fly": sum(record["evaluated"] for record in records),
        "materialised": records[0]["working_set"] + sum(record["admitted"] for record in records),
        "active": records[-1]["n_active"],
    }
