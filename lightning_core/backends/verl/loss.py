"""The losses inside verl's workers. They are our algorithms' own: verl does forward, backward and step.

verl calls a loss with what the model gave for a micro-batch, adds up the gradients of micro-batches, and
takes the mean over the data-parallel ranks. Our weights are shares of the whole batch, so a loss times the
number of ranks is all it takes. Metrics go back as numbers that add up, or whose maximum counts, under names
that say which; `finish_metrics` puts them together.

An algorithm with units (DPO) must see the tokens of a unit together, which may be in different micro-batches
or on different ranks. For those the driver takes the loss itself, on log-probabilities that were inferred for
the whole batch, and the workers descend sum(coefficient * logprob), the coefficients being its derivatives.
As the loss depends on the weights through these log-probabilities only, that is the same gradient.

Replies that were held to a grammar get its masks again before verl takes log-probabilities of the logits
(`mask_outputs`): each worker makes those of its own rows, from the grammar's text and the recorded ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_core.algorithms import losses
from lightning_core.algorithms.base import Algorithm, Entries
from lightning_core.backends.rows import Row
from lightning_core.backends.serving.constraints import Grammars, penalties
from lightning_core.backends.verl.batch import GRAMMARS, fields, flat, parents_of
from lightning_core.errors import TrainingError
from lightning_core.experience.trajectories import Floats

METRICS = "lightning"
"""The one name that all our metrics go back under: verl wants the same names from each rank, and a rank with
nothing but padding has none."""
SUM, MAX = "sum/", "max/"
"""How the names of our metrics begin that are to be added up, and those whose maximum counts."""
RECORDED, COUNT, GAP = "recorded_logprob", "recorded_tokens", "logprob_gap"
SEEN, SAMPLED, TRAINED = "gap_tokens", "sampled_logprob", "trained_logprob"
AT_ONCE = 64
"""Tokens whose masks are spread over the vocabulary at a time: 40 MB for 152,000 tokens in float32."""

Reported = tuple[torch.Tensor, dict[str, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class AlgorithmLoss:
    """An algorithm's loss over the entries of a micro-batch."""

    algorithm: Algorithm

    def __call__(
        self, model_output: Mapping[str, Any], data: Mapping[str, Any], dp_group: Any = None
    ) -> Reported:
        logprobs = at_parents(model_output["log_probs"], data)
        if not len(logprobs):  # padding alone
            return logprobs.sum(), {METRICS: {}}
        entries = make_entries(self.algorithm, logprobs, data)
        loss, metrics = self.algorithm.loss(entries)
        found = measure(entries, {"loss": loss, **metrics}, flat(data, "fresh"))
        return loss * data["dp_size"], {METRICS: found}


@dataclass(frozen=True, slots=True)
class LinearLoss:
    """sum(coefficient * logprob): a gradient that was worked out elsewhere (`coefficients`)."""

    def __call__(
        self, model_output: Mapping[str, Any], data: Mapping[str, Any], dp_group: Any = None
    ) -> Reported:
        logprobs = at_parents(model_output["log_probs"], data)
        return (logprobs * _given(data, "coefficients")).sum() * data["dp_size"], {METRICS: {}}


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """Half the mean squared error of a critic's values, as the local backend's."""

    def __call__(
        self, model_output: Mapping[str, Any], data: Mapping[str, Any], dp_group: Any = None
    ) -> Reported:
        values = at_parents(model_output["values"], data)
        total = (_given(data, "weight") * losses.value_loss(values, _given(data, "targets"))).sum()
        return total * data["dp_size"], {METRICS: _numbers(SUM, {"value_loss": total})}


def coefficients(
    algorithm: Algorithm,
    rows: Sequence[Row],
    logprobs: Floats,
    *,
    proximal: Floats | None = None,
    reference: Floats | None = None,
    fresh: Floats | None = None,
) -> tuple[Floats, dict[str, float]]:
    """(what `LinearLoss` needs, the metrics as `finish_metrics` gives them) of a whole batch.

    `logprobs` (E,) under the present weights; `proximal` and `reference` (E,) as the algorithm needs them;
    `fresh` (E,) as `measure` does.
    """
    data = fields(rows, proximal=proximal, reference=reference, fresh=fresh)
    leaf = torch.tensor(logprobs, requires_grad=True)
    entries = make_entries(algorithm, leaf, data)
    loss, metrics = algorithm.loss(entries)
    (slope,) = torch.autograd.grad(loss, leaf)
    found = measure(entries, {"loss": loss, **metrics}, flat(data, "fresh"))
    return slope.numpy(), finish_metrics({METRICS: [found]})


def at_parents(output: Any, data: Mapping[str, Any]) -> torch.Tensor:
    """(E,) float32: what the model gave at the parent of each entry of a micro-batch."""
    first, count, entries = (data[name] for name in ("span_first", "span_count", "entry_logprobs"))
    starts = output.offsets()[:-1].repeat_interleave(first.offsets().diff(), output_size=len(first.values()))
    parents = parents_of(first.values(), count.values(), starts, len(entries.values()))
    found: torch.Tensor = output.values()[parents].float()
    return found


def make_entries(algorithm: Algorithm, logprobs: torch.Tensor, data: Mapping[str, Any]) -> Entries:
    """The entries as the algorithm wants them. Raises TrainingError if a field that it needs was not sent.

    Where the proximal policy is needed and not given, no step was made yet, and it is the present one.
    """
    proximal = flat(data, "proximal")
    if algorithm.needs_proximal and proximal is None:
        proximal = logprobs.detach()
    sequences = torch.unique(_given(data, "sequence"), return_inverse=True)[1]
    units = flat(data, "unit")
    return Entries(
        logprobs=logprobs,
        old_logprobs=_given(data, "logprobs"),
        advantages=_given(data, "advantage"),
        weights=_given(data, "weight"),
        sequences=sequences,
        units=torch.full_like(sequences, -1) if units is None else units,
        proximal_logprobs=proximal,
        ref_logprobs=_given(data, "reference") if algorithm.needs_reference else None,
    )


@torch.no_grad()
def measure(
    entries: Entries, metrics: Mapping[str, torch.Tensor], fresh: torch.Tensor | None = None
) -> dict[str, float]:
    """The metrics, which add up, and how far the recorded log-probabilities are from the present ones.

    `fresh` (E,) is above 0 for the entries that the weights under training sampled; None: all. The gap is
    theirs alone.
    """
    recorded = ~entries.old_logprobs.isnan()
    if not recorded.any():
        return _numbers(SUM, metrics)
    sums = {**metrics, RECORDED: entries.old_logprobs[recorded].sum(), COUNT: recorded.sum()}
    seen = recorded if fresh is None else recorded & (fresh > 0)
    if not seen.any():
        return _numbers(SUM, sums)
    sampled, trained = entries.old_logprobs[seen], entries.logprobs[seen]
    gaps = (trained - sampled).abs()
    sums |= {SEEN: seen.sum(), SAMPLED: sampled.sum(), TRAINED: trained.sum(), GAP: gaps.sum()}
    return {**_numbers(SUM, sums), **_numbers(MAX, {GAP: gaps.max()})}


def finish_metrics(reported: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a batch, named as the local backend's.

    `reported` is what verl gives back, in which `METRICS` has a list over micro-batches and ranks.
    """
    sums: dict[str, float] = {}
    most: dict[str, float] = {}
    for part in _leaves(reported.get(METRICS, [])):
        for name, value in part.items():
            short = name[len(SUM) :]
            if name.startswith(MAX):
                most[short] = max(most.get(short, value), value)
            else:
                sums[short] = sums.get(short, 0.0) + value
    old, count = (sums.pop(name, 0.0) for name in (RECORDED, COUNT))
    if count:
        sums["sampled_entropy"] = -old / count
    seen, sampled, trained, gap = (sums.pop(name, 0.0) for name in (SEEN, SAMPLED, TRAINED, GAP))
    if seen:
        sums |= {
            "sampled_logprob": sampled / seen,
            "trained_logprob": trained / seen,
            "logprob_gap_mean": gap / seen,
            "logprob_gap_max": most[GAP],
        }
    return sums


def _given(data: Mapping[str, Any], name: str) -> torch.Tensor:
    found = flat(data, name)
    if found is None:
        raise TrainingError(f"the loss needs {name} of each entry, which to_batch was not given")
    return found


def _numbers(prefix: str, metrics: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """As plain numbers; all in one copy, for each copy waits for the device."""
    if not metrics:
        return {}
    values = torch.stack([each.detach().float() for each in metrics.values()]).tolist()
    return {f"{prefix}{name}": value for name, value in zip(metrics, values, strict=True)}


def _leaves(reported: Any) -> Iterable[dict[str, float]]:
    """Yields the reports in a list of lists, however deep."""
    if isinstance(reported, list | tuple):
        for each in reported:
            yield from _leaves(each)
    else:
        yield reported


def mask_outputs(engine: Any) -> None:
    """Let an engine of verl's take log-probabilities under the grammars of its rows."""
    plain = engine.prepare_model_outputs
    made: list[Grammars] = []

    def masked(*, output: Any, micro_batch: Mapping[str, Any], **more: Any) -> Any:
        if GRAMMARS in micro_batch.keys():  # noqa: SIM118
            if not made:
                model = engine.model_config
                made.append(Grammars(model.tokenizer, model.hf_config.vocab_size))
            mask_logits(output.logits, micro_batch, made[0])
        return plain(output=output, micro_batch=micro_batch, **more)

    engine.prepare_model_outputs = masked


def mask_logits(logits: torch.Tensor, data: Mapping[str, Any], grammars: Grammars) -> None:
    """In place, minus infinity in the logits of a micro-batch for what its rows' grammars do not allow.

    The logits are (1, all tokens, V), one row after another, or (N, longest row, V). Raises TrainingError for
    a reply that does not follow its grammar.
    """
    ids, texts, first, count = (data[name] for name in ("input_ids", GRAMMARS, "span_first", "span_count"))
    rows = zip(ids.unbind(), texts.unbind(), first.unbind(), count.unbind(), strict=True)
    padded, places = logits.shape[0] > 1, ids.offsets().tolist()
    if not padded and logits.shape[1] < places[-1]:
        raise TrainingError(
            f"the logits are of {logits.shape[1]} tokens where the rows have {places[-1]}: a reply that was "
            "held to a form can't be trained with sequences cut over ranks"
        )
    every = logits.view(-1, logits.shape[-1])
    for number, (tokens, text, firsts, counts) in enumerate(rows):
        start = number * logits.shape[1] if padded else places[number]
        written = bytes(text.tolist())
        spans = zip(json.loads(written or "[]"), firsts.tolist(), counts.tolist(), strict=bool(written))
        for grammar, parent, many in spans:
            if grammar is None:
                continue
            sampled = tokens[parent + 1 : parent + 1 + many].tolist()
            words = grammars.replay(grammar, sampled, f"a reply of {many} tokens")
            for at in range(0, many, AT_ONCE):
                added = torch.from_numpy(penalties(words[at : at + AT_ONCE], every.shape[-1]))
                place = start + parent + at
                every[place : place + len(added)] += added.to(every)
