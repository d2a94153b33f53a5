"""Mutants: single wrong lines, each with a test that must notice it. Add a row for every rule that a test guards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old`, which stands in `file` exactly once, becomes `new`; then `test` must fail."""

    file: str
    """Below `trainer4090/`."""
    old: str
    new: str
    test: str
    """Node below `tests/`."""


LOCAL, UPDATE, BUILD = "executors/local.py", "executors/update.py", "build.py"
CHECKPOINT, RECOMPUTE = (
    "memory/checkpoint.py",
    "recompute_in_backward(self._run, hidden, use_reentrant=False, context_fn",
)
ACCUMULATION = "test_accumulation.py::"
FULL_BATCH = f"{ACCUMULATION}test_equals_the_full_batch[mlp-2-ragged_targets]"
TAIL = f"{ACCUMULATION}test_tail_of_an_epoch_has_its_own_divisor"
CLIPS_ONCE = "test_update.py::test_clips_once_after_unscaling"
SKIPPED = "test_update.py::test_a_skipped_update_moves_nothing_but_the_scale"

MUTANTS = {
    "no_division": Mutant(LOCAL, "seed(total, divisor)", "seed(total, 1)", TAIL),
    "micro_batch_mean": Mutant(LOCAL, "seed(total, divisor)", "seed(total, len(micro_targets))", FULL_BATCH),
    "full_divisor_for_a_tail": Mutant(
        LOCAL, "max(batch.num_targets, 1)", "max(batch.num_targets, 2 * self._micro_batch)",
        TAIL),
    "division_by_no_targets": Mutant(
        LOCAL, "max(batch.num_targets, 1)", "torch.tensor(float(batch.num_targets))",
        f"{ACCUMULATION}test_an_update_without_targets_moves_nothing"),
    "unscale_twice": Mutant(
        LOCAL, "        self._update.unscale(gradients)\n", "        self._update.unscale(gradients)\n" * 2,
        f"{CLIPS_ONCE}[scaled-1]"),
    "clip_before_unscale": Mutant(
        LOCAL, "        self._update.unscale(gradients)\n", "        self._clip(gradients)\n"
        "        self._update.unscale(gradients)\n", f"{CLIPS_ONCE}[scaled-1]"),
    "clip_per_micro_batch": Mutant(
        LOCAL, "            losses.append(", "            self._clip(self._gradients())\n            losses.append(",
        f"{CLIPS_ONCE}[plain-2]"),
    "gradients_kept": Mutant(LOCAL, "self._optimizer.zero_grad(set_to_none=True)", "pass", TAIL),
    "unused_parameter_accepted": Mutant(
        LOCAL, "        if missing:", "        if False:", "test_parameters.py::test_an_unused_parameter_is_named"),
    "no_autocast": Mutant(
        LOCAL, "        with self.context():", "        if True:",
        "test_precision.py::test_where_each_dtype_is[bf16]"),
    "schedule_per_micro_batch": Mutant(
        UPDATE, "        return self._seeds[place]", "        self._applied += 1\n        return self._seeds[place]",
        "test_schedules.py::test_rates_are_counted_in_updates[2-cosine-fp32]"),
    "schedule_moved_by_a_skipped_update": Mutant(
        UPDATE, "self._applied += applied.to(torch.int64)", "self._applied += 1", SKIPPED),
    "average_moved_by_a_skipped_update": Mutant(
        UPDATE, "self._average.update(applied)", "self._average.update(applied=None)", SKIPPED),
    "overflow_applied": Mutant(UPDATE, ".found_inf = self._found_inf", ".found_inf = None", SKIPPED),
    "no_floor": Mutant(
        UPDATE, "        self._scale.clamp_(min=self._floor)\n", "",
        "test_update.py::test_overflows_down_to_the_floor_are_divergence"),
    "scale_never_grows": Mutant(
        UPDATE, "2.0, 0.5, self", "1.0, 0.5, self",
        "test_update.py::test_the_scale_doubles_after_the_growth_interval_of_good_updates"),
    "rate_read_on_the_host": Mutant(
        UPDATE, "self._rates.take(torch.minimum(self._applied, self._last))",
        "self._rates[torch.minimum(self._applied, self._last)]",
        "test_update.py::test_an_update_reads_nothing_back[gpt-none-amp]"),
    "no_buffer_guard": Mutant(
        CHECKPOINT, "return nullcontext(), cloned_buffers(self.blocks)", "return nullcontext(), nullcontext()",
        "test_checkpointing.py::test_running_statistics_move_once_an_update[2]"),
    "reentrant": Mutant(
        CHECKPOINT, f"{RECOMPUTE}=self._contexts)", "recompute_in_backward(self._run, hidden, use_reentrant=True)",
        "test_checkpointing.py::test_blocks_after_a_frozen_one_are_trained[checkpoint]"),
    "random_state_not_restored": Mutant(
        CHECKPOINT, RECOMPUTE, RECOMPUTE.replace("context_fn", "preserve_rng_state=False, context_fn"),
        "test_checkpointing.py::test_equals_none_exactly[gpt-fp32-2]"),
    "nothing_recomputed": Mutant(
        CHECKPOINT, "if not torch.is_grad_enabled():", "if True:",
        "test_checkpointing.py::test_holds_less_for_backward[gpt]"),
    "no_chain_accepted": Mutant(
        CHECKPOINT, "elif hidden is self._output:", "elif True:",
        "test_checkpointing.py::test_blocks_that_are_no_chain_are_refused[eager]"),
    "biases_decay": Mutant(
        BUILD, "parameter.ndim < 2], 0.0),", "parameter.ndim < 2], weight_decay),",
        "test_parameters.py::test_every_parameter_is_in_one_group_and_vectors_do_not_decay[mlp]"),
    "channels_last_on_everything": Mutant(
        BUILD, " if tensor.ndim == 4 else tensor", "",
        "test_fused.py::test_channels_last_is_for_tensors_of_four_dimensions"),
    "momentum_not_initialised": Mutant(
        "optimizers/sgd.py", "torch.zeros_like(parameter)", "torch.empty_like(parameter)",
        "test_update.py::test_an_update_after_a_first_skipped_one_is_a_fresh_first_update[sgd]"),
    "loss_in_half_precision": Mutant(
        "losses/cross_entropy.py", "logits if logits.dtype == torch.float64 else logits.float()", "logits",
        "test_precision.py::test_the_loss_is_computed_in_fp32[bf16]"),
    "schedule_one_update_short": Mutant(
        "schedules/onecycle.py", "fall = horizon.total - 1 - peak", "fall = horizon.total - peak",
        "test_schedules.py::test_the_last_update_alone_has_the_end_value[onecycle-10]"),
    "evaluation_in_training_mode": Mutant(
        "loop.py", "    module.eval()\n", "", "test_evaluation.py::test_equals_one_pass_over_all_samples[cnn-eager]"),
    "evaluation_without_the_average": Mutant(
        "loop.py", "nullcontext() if average is None else average.swapped_in()", "nullcontext()",
        "test_evaluation.py::test_the_averages_are_evaluated"),
    "mean_of_batch_means": Mutant(
        "metrics/__init__.py", "total.double()\n        self._count = self._count + count",
        "total.double() / count\n        self._count = self._count + 1",
        "test_metrics.py::test_metrics_of_classes[perplexity-all-classes-ragged]"),
    "masked_targets_counted": Mutant(
        "metrics/topk.py", "targets.where(valid, 0)) < k)).sum(), valid.sum()",
        "targets.where(valid, 0)) < k)).sum(), torch.tensor(valid.numel())",
        "test_metrics.py::test_metrics_of_classes[top5-masked-classes-whole]"),
    "ties_in_any_order": Mutant(
        "metrics/topk.py", " | ((outputs == score) & earlier)", "",
        "test_metrics.py::test_metrics_of_classes[top1-all-classes-whole]"),
    "precision_within_ties": Mutant(
        "metrics/average_precision.py", "    last[:-1] = ordered[:-1] != ordered[1:]\n", "",
        "test_metrics.py::test_average_precision[whole]"),
    "labels_without_positives_averaged": Mutant(
        "metrics/average_precision.py", "averages[positives > 0].mean()", "averages.nan_to_num().mean()",
        "test_metrics.py::test_average_precision[whole]"),
    "outputs_not_kept": Mutant(
        "metrics/average_precision.py", "scores.clone()", "scores",
        "test_metrics.py::test_outputs_that_are_written_over_are_kept"),
    "logits_as_probabilities": Mutant(
        "metrics/torchmetrics.py", "values.sigmoid() if self._question.logits else values.clamp(0, 1)", "values",
        "test_metrics.py::test_the_library_on_labels[MultilabelAUROC-ragged]"),
    "labels_summed": Mutant(
        "losses/bce.py", "reshape(len(losses), -1).mean(1).sum()", "sum()",
        "test_losses.py::test_binary_cross_entropy_divides_as_torch_does"),
    "waiting_not_saved": Mutant(
        "loop.py", "        waiting=Waiting(**state[\"waiting\"]),\n", "",
        "test_criterion.py::test_a_resumed_run_waits_as_the_uninterrupted_one[2]"),
    "best_is_the_reference": Mutant(
        "criterion.py", "waiting.reference) > self.least_improvement", "waiting.reference) > 0",
        "test_criterion.py::test_courses[small gains are not enough, but are best]"),
    "higher_taken_for_lower": Mutant(
        "criterion.py", "value - reference if self.higher_is_better else reference - value", "reference - value",
        "test_criterion.py::test_courses[higher]"),
    "order_depends_on_workers": Mutant(
        "data/pipeline/loader.py", "epoch_order(self._seed, part", "epoch_order(self._seed + 1, part",
        "test_loader.py::test_workers_give_the_same_bits_and_leave_no_trace"),
}  # fmt: skip
