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


LOCAL, UPDATE, BUILD = "executors/local.py", "executors/update.py", "build/updates.py"
BASE, GRAPH, STAGING = "executors/base.py", "executors/graph.py", "executors/staging.py"
CHECKPOINT, RECOMPUTE = (
    "memory/checkpoint.py",
    "recompute_in_backward(self._run, hidden, **options)",
)
SAVED = "memory/host/saved.py"
FREEZE, FIT = "finetune/freeze.py", "finetune/fit.py"
ACCUMULATION = "test_accumulation.py::"
FULL_BATCH = f"{ACCUMULATION}test_equals_the_full_batch[mlp-2-ragged_targets]"
TAIL = f"{ACCUMULATION}test_tail_of_an_epoch_has_its_own_divisor"
CLIPS_ONCE = "test_update.py::test_clips_once_after_unscaling"
SKIPPED = "test_update.py::test_a_skipped_update_moves_nothing_but_the_scale"
ALIGNED, HEAD = "kernels/layers/aligned.py", "executors/chunked_head.py"
WHOLE_LOGITS = "test_linear_cross_entropy.py::test_equals_whole_logits"

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
        LOCAL, "            loss_sums.append(",
        "            self._clip(self._gradients())\n            loss_sums.append(",
        f"{CLIPS_ONCE}[plain-2]"),
    "loss_read_without_its_division": Mutant(
        BASE, "total / self.num_targets for", "total for",
        "test_golden.py::test_losses_of_a_hundred_updates[mlp]"),
    "an_ignored_target_counted": Mutant(
        "losses/cross_entropy.py", "targets.min()) > config", "targets.min()) >= config",
        "test_losses.py::test_cross_entropy_is_its_definition[ignored]"),
    "gradients_kept": Mutant(LOCAL, "self._optimizer.zero_grad(set_to_none=True)", "pass", TAIL),
    "unused_parameter_accepted": Mutant(
        LOCAL, "        if missing:", "        if False:", "test_parameters.py::test_an_unused_parameter_is_named"),
    "measured_within_the_spread": Mutant(
        "timings.py", "margin = 1 + max(candidate.spread, first.spread)", "margin = 1.0",
        "test_timings.py::test_what_is_taken[within-the-spread]"),
    "a_key_measured_without_those_before_it": Mutant(
        "ablation/choosing.py", "base = timings.with_values(base, {key: found.value})", "pass",
        "test_timings.py::test_keys_are_measured_one_after_the_other"),
    "a_resume_measured_anew": Mutant(
        "ablation/choosing.py", "for each in recorded if", "for each in () if",
        "test_timings.py::test_a_run_trains_with_what_is_faster_and_a_resume_keeps_it"),
    "no_autocast": Mutant(
        BASE, "        with self.context():", "        if True:",
        "test_precision.py::test_where_each_dtype_is[bf16]"),
    "schedule_per_micro_batch": Mutant(
        UPDATE, "        return self._seeds[place]", "        self._applied += 1\n        return self._seeds[place]",
        "test_schedules.py::test_rates_are_counted_in_updates[2-cosine-fp32]"),
    "schedule_moved_by_a_skipped_update": Mutant(
        UPDATE, "self._rates.applied += applied.to(torch.int64)", "self._rates.applied += 1", SKIPPED),
    "average_moved_by_a_skipped_update": Mutant(
        UPDATE, "self._average.update(applied)", "self._average.update(applied=None)", SKIPPED),
    "overflow_applied": Mutant(UPDATE, ".found_inf = self._found_inf", ".found_inf = None", SKIPPED),
    "no_floor": Mutant(
        UPDATE, "        self._scale.clamp_(min=self._floor)\n", "",
        "test_update.py::test_overflows_down_to_the_floor_are_divergence"),
    "scale_never_grows": Mutant(
        UPDATE, "2.0, 0.5, self", "1.0, 0.5, self",
        "test_update.py::test_the_scale_doubles_after_the_growth_interval_of_good_updates"),
    "a_captured_update_reads_the_batch_that_it_was_captured_with": Mutant(
        GRAPH, "        self.place.fill(inputs, targets)\n", "        if not self._num_targets:\n"
        "            self.place.fill(inputs, targets)\n",
        "test_graph.py::test_equals_the_same_kernels_uncaptured[mlp-plain-fp32]"),
    "a_captured_update_divides_by_the_targets_that_it_was_captured_with": Mutant(
        GRAPH, "            self.divisor.fill_(num_targets)\n", "            self.divisor.fill_(8)\n",
        "test_graph.py::test_equals_the_same_kernels_uncaptured[mlp-plain-fp32]"),
    "garbage_collected_while_an_update_is_captured": Mutant(
        GRAPH, "    gc.disable()\n", "", "test_graph.py::test_no_garbage_is_collected_while_an_update_is_captured"),
    "a_captured_rate_stands_still": Mutant(
        UPDATE, "        self._rates.applied += 1\n", "",
        "test_schedules.py::test_rates_are_counted_in_updates[1-cosine-graph]"),
    "two_jobs_of_a_sweep_on_one_card": Mutant(
        "sweeps/cards.py", "            self._free.difference_update(places)\n", "",
        "test_sweep_cards.py::test_two_jobs_run_at_once_and_each_sees_its_own_card"),
    "a_job_of_a_sweep_sees_all_cards": Mutant(
        "sweeps/cards.py", "len(self._names) > 1 and", "False and",
        "test_sweep_cards.py::test_two_jobs_run_at_once_and_each_sees_its_own_card"),
    "a_slot_written_while_it_is_read": Mutant(
        STAGING, "            self._stream.wait_event(slot.free)\n", "",
        "test_staging.py::test_every_update_reads_its_own_batch"),
    "a_slot_read_before_it_is_written": Mutant(
        STAGING, "        compute.wait_event(slot.arrived)\n", "",
        "test_staging.py::test_every_update_reads_its_own_batch"),
    "a_slot_freed_with_its_next_readers": Mutant(
        STAGING, "(self._num_batches - 1) % NUM_SLOTS", "self._num_batches % NUM_SLOTS",
        "test_staging.py::test_a_copy_overlaps_the_update_before"),
    "a_slot_written_while_its_memory_is_in_use": Mutant(
        STAGING, "        self.free.record(torch.cuda.current_stream(device))\n", "",
        "test_staging.py::test_a_copy_waits_for_what_had_its_memory_before"),
    "copies_that_overlap_nothing": Mutant(
        STAGING, "NUM_SLOTS = 2", "NUM_SLOTS = 1",
        "test_staging.py::test_a_copy_overlaps_the_update_before"),
    "rate_read_on_the_host": Mutant(
        UPDATE, "self._rates.take(torch.minimum(self.applied, self._last))",
        "self._rates[torch.minimum(self.applied, self._last)]",
        "test_update.py::test_an_update_reads_nothing_back[gpt-none-amp]"),
    "rate_of_the_update_before": Mutant(
        "executors/in_backward.py", "        self._update.set_rates()\n", "",
        "test_step_in_backward.py::test_equals_none_exactly_beside[cosine]"),
    "gradient_kept_in_backward": Mutant(
        "executors/in_backward.py", "        parameter.grad = None\n", "",
        "test_step_in_backward.py::test_gradients_never_exist_all_at_once"),
    "group_of_another_parameter": Mutant(
        "executors/in_backward.py", "param_groups[self._groups[parameter]]", "param_groups[0]",
        "test_step_in_backward.py::test_equals_none_exactly_beside[layer_decay]"),
    "used_before_it_arrived": Mutant(
        SAVED, "        entry.arrive()\n", "", "test_offload.py::test_equals_none_exactly[gpt]"),
    "freed_before_it_left": Mutant(
        SAVED, "        self.forward.link.wait(self.leaving)\n", "", "test_offload.py::test_equals_none_exactly[gpt]"),
    "freed_before_it_arrived": Mutant(
        SAVED, "        self.arrive()\n        if", "        if",
        "test_offload.py::test_memory_that_is_written_to_is_freed_after_that"),
    "place_in_the_storage_forgotten": Mutant(
        SAVED, "saved.offset, saved.size", "0, saved.size", "test_offload.py::test_views_keep_their_place"),
    "content_of_the_first_save": Mutant(
        SAVED, "(key_of(tensor), tensor._version)", "(key_of(tensor), 0)",
        "test_offload.py::test_a_storage_that_is_written_between_two_saves_goes_twice"),
    "parameters_offloaded": Mutant(
        SAVED, "if key in self._staying or", "if", "test_offload.py::test_a_storage_goes_once_and_parameters_stay"),
    "nothing_leaves": Mutant(
        SAVED, "            oldest.leave()\n", "", "test_offload.py::test_less_is_held_for_backward"),
    "nothing_called_ahead": Mutant(
        SAVED, "        self._call_ahead(entry.index - 1)\n", "",
        "test_offload.py::test_calls_back_ahead_within_the_window[2]"),
    "layout_of_the_parameter_ignored": Mutant(
        "executors/low_bit.py", "same = value.stride() == parameter.stride()", "same = True",
        "test_lowbit.py::test_states_follow_names_and_not_the_layout_of_memory"),
    "codes_not_loaded": Mutant(
        "executors/low_bit.py", "self._saved.append((parameter, codes))", "pass",
        "test_lowbit.py::test_a_saved_state_comes_back_bit_for_bit[adamw]"),
    "a_root_of_zero": Mutant(
        "executors/codes.py", "[0.0, *middles[1:]]", "middles",
        "test_lowbit.py::test_only_zero_becomes_zero_where_a_root_divides_by_it"),
    "no_word_for_the_largest": Mutant(
        "executors/codes.py", "(high - low) * (index + 1) / count", "(high - low) * (index + 0.5) / count",
        "test_lowbit.py::test_what_was_decoded_is_encoded_to_the_same_bits[signed-2000-torch.float32]"),
    "states_stay_wide": Mutant(
        "executors/low_bit.py", "                        self.narrow(parameter)\n", "",
        "test_lowbit.py::test_states_take_little_more_than_a_quarter[adamw]"),
    "no_buffer_guard_beside_select": Mutant(
        CHECKPOINT, "_both(again, reusing)", "reusing",
        "test_select.py::test_running_statistics_move_once_an_update"),
    "selected_operations_computed_again": Mutant(
        CHECKPOINT, "    held = operations(select)\n", "    held = operations(())\n",
        "test_select.py::test_what_is_selected_is_not_computed_again[gpt-attention]"),
    "another_dropout_in_backward": Mutant(
        "rules/memory.py", "field is not None and plan.evidence.model.dropout", "False",
        "test_select.py::test_what_does_not_go_together_is_an_error[dropout]"),
    "budget_of_all": Mutant(
        CHECKPOINT, "activation_memory_budget=budget", "activation_memory_budget=1.0",
        "test_select.py::test_a_smaller_budget_holds_fewer_bytes"),
    "no_buffer_guard": Mutant(
        CHECKPOINT, "with cloned_buffers(blocks), only(backends)", "with only(backends)",
        "test_checkpointing.py::test_running_statistics_move_once_an_update[2]"),
    "reentrant": Mutant(
        CHECKPOINT, RECOMPUTE, "recompute_in_backward(self._run, hidden, use_reentrant=True)",
        "test_checkpointing.py::test_blocks_after_a_frozen_one_are_trained[checkpoint]"),
    "random_state_not_restored": Mutant(
        CHECKPOINT, '"preserve_rng_state": keep', '"preserve_rng_state": False',
        "test_checkpointing.py::test_equals_none_exactly[gpt-fp32-2]"),
    "nothing_recomputed": Mutant(
        CHECKPOINT, "if not torch.is_grad_enabled():", "if True:",
        "test_checkpointing.py::test_holds_less_for_backward[gpt]"),
    "no_chain_accepted": Mutant(
        CHECKPOINT, "elif hidden is self._output:", "elif True:",
        "test_checkpointing.py::test_blocks_that_are_no_chain_are_refused[eager]"),
    "biases_decay": Mutant(
        BUILD, "0.0 if vectors else weight_decay", "weight_decay",
        "test_parameters.py::test_every_parameter_is_in_one_group_and_vectors_do_not_decay[mlp]"),
    "channels_last_on_everything": Mutant(
        "build/inputs.py", " if tensor.ndim == 4 else tensor", "",
        "test_fused.py::test_channels_last_is_for_tensors_of_four_dimensions"),
    "autocast_dtype_not_in_the_key": Mutant(
        "kernels/fused.py", "cache_key_tag, *dtypes,", "cache_key_tag,",
        "test_fused.py::test_each_autocast_dtype_has_its_own_key_in_the_compilers_cache"),
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
        LOCAL, "        self.forward.set_training(False)\n", "",
        "test_evaluation.py::test_equals_one_pass_over_all_samples[cnn-eager]"),
    "evaluation_without_the_average": Mutant(
        LOCAL, "nullcontext() if self.average is None else self.average.swapped_in()", "nullcontext()",
        "test_evaluation.py::test_the_averages_are_evaluated"),
    "frozen_statistics_move": Mutant(
        BASE, "            module.eval()\n", "            pass\n",
        "test_freeze.py::test_frozen_stays_and_the_rest_moves_in_the_first_update[resnet-none]"),
    "frozen_statistics_move_after_an_evaluation": Mutant(
        LOCAL, "self.forward.set_training(was_training)", "self.forward.module.train(was_training)",
        "test_freeze.py::test_modes[True]"),
    "frozen_parameters_are_trained": Mutant(
        FREEZE, "parameter.requires_grad_(parameter.requires_grad and id(parameter) not in frozen)", "pass",
        "test_freeze.py::test_frozen_stays_and_the_rest_moves_in_the_first_update[cnn-none]"),
    "frozen_parameters_in_the_optimizer": Mutant(
        BUILD, "        if parameter.requires_grad:\n", "        if True:\n",
        "test_freeze.py::test_frozen_parameters_are_in_no_group[sgd]"),
    "layers_decay_upwards": Mutant(
        BUILD, "decay ** (len(blocks) + 1 - depth)", "decay**depth",
        "test_layer_decay.py::test_equals_a_loop_written_by_hand"),
    "shares_forgotten_in_an_update": Mutant(
        UPDATE, "rate if scale == 1.0 else rate * scale", "rate",
        "test_layer_decay.py::test_equals_a_loop_written_by_hand"),
    "any_layer_replaced_as_a_head": Mutant(
        FIT, "theirs.shape[1:] == weight.shape[1:] and ", "",
        "test_weights.py::test_weights_of_another_model[wider-head]"),
    "unknown_names_in_weights_accepted": Mutant(
        FIT, "[name for name in tensors if name not in own]", "[]",
        "test_weights.py::test_weights_of_another_model[unexpected]"),
    "weights_without_the_average": Mutant(
        "finetune/weights_file.py", "    if average is None:\n", "    if True:\n",
        "test_weights.py::test_a_run_and_its_files[gpt-averaged]"),
    "weights_read_again_on_resume": Mutant(
        "build/__init__.py", " and not restoring", "", "test_weights.py::test_resumes_without_the_file"),
    "published_weights_unchecked": Mutant(
        "models/networks/torchvision_weights.py", "not digest.startswith(digits)", "False",
        "test_weights.py::test_published_weights_are_checked"),
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
    "tokens_without_the_offset": Mutant(
        "data/pipeline/mapped.py", " + epoch_offset(self.seed, epoch, self.num_offsets)", "",
        "test_tokens.py::test_losses_are_those_of_the_text[gpt]"),
    "tokens_one_further": Mutant(
        "data/pipeline/mapped.py", "rows[:, :-1].contiguous()", "rows[:, 1:].contiguous()",
        "test_tokens.py::test_windows_are_those_of_the_text"),
    "a_block_is_not_scanned": Mutant(
        "data/pipeline/token_files.py", "begin + _SCAN_TOKENS].max()", "begin + _SCAN_TOKENS - 1].max()",
        "test_tokens.py::test_the_scan_sees_every_block"),
    "a_cut_between_blanks": Mutant(
        "preparation/bpe.py", r"(?<=\S)\n(?=\S)", r"\n",
        "test_prepare.py::test_cuts_do_not_change_an_encoding"),
    "a_tied_head_keeps_its_last_update": Mutant(
        "trained.py", "model.module.named_parameters()", "list(model.module.named_parameters())[1:]",
        "test_generate.py::test_a_loaded_model_is_the_evaluated_one[gpt]"),
    "generated_without_the_average": Mutant(
        "trained.py", "averages is not None", "False",
        "test_generate.py::test_a_loaded_model_is_the_evaluated_one[untied]"),
    "a_state_is_forgotten": Mutant(
        "models/networks/char_lstm.py", "None if states is None else states[index]", "None",
        "test_generate.py::test_a_carried_state_is_the_whole_sequence"),
    "padding_is_drawn": Mutant(
        "generation.py", "[:vocab_size].float()", ".float()",
        "test_generate.py::test_tokens_that_fill_up_a_vocabulary_are_never_drawn"),
    "split_numbered_by_its_own_folders": Mutant(
        "data/pipeline/image_splits.py", "found = sorted((label_of[name], folder) for",
        "found = sorted((sorted(folders).index(name), folder) for",
        "test_image_splits.py::test_held_out_classes_are_matched_by_name"),
    "crop_depends_on_the_batch": Mutant(
        "data/pipeline/file_source.py", "attempts in _attempts(self.seed, epoch, indices)]",
        "attempts in _attempts(self.seed, epoch, torch.arange(len(indices)))]",
        "test_image_folder.py::test_augmentation_is_a_function_of_seed_epoch_and_sample"),
    "flip_depends_on_the_batch": Mutant(
        "data/pipeline/prepare_images.py", "_FLIP_STREAM, epoch), indices) < 0",
        "_FLIP_STREAM, epoch), torch.arange(len(indices))) < 0",
        "test_image_folder.py::test_augmentation_is_a_function_of_seed_epoch_and_sample"),
    "hidden_colours_appear": Mutant(
        "data/pipeline/pillow_modes.py", "if image.has_transparency_data:", "if False:",
        "test_decode.py::test_stated_pixels[alpha-hidden]"),
    "sixteen_bits_saturate": Mutant(
        "data/pipeline/pillow_modes.py", "return _from_16_bits(image)", 'return image.convert("L")',
        "test_decode.py::test_stated_pixels[16-bit]"),
    "rotation_forgotten": Mutant(
        "data/pipeline/pillow_modes.py", "image if turn is None else image.transpose(turn)", "image",
        "test_decode.py::test_exif_rotation_is_applied_once[6-PNG]"),
    "fast_rotation_mirrored": Mutant(
        "data/pipeline/jpeg.py", "6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1]",
        "6: lambda pixels: pixels.swapaxes(0, 1)[::-1]", "test_jpeg.py::test_a_rotation_is_that_of_pillow[6-cropped]"),
    "fast_decoder_takes_rgb_for_grey": Mutant(
        "data/pipeline/jpeg.py", '_READ_MODES = {"L": 1', '_READ_MODES = {"L": 3',
        "test_jpeg.py::test_the_pixels_are_those_of_pillow[progressive-grey]"),
    "fast_decoder_crops_before_it_turns": Mutant(
        "data/pipeline/decode.py", "_view(turned(planes.permute(1, 2, 0).numpy(), plain.orientation)"
        "[upper:lower, left:right])",
        "_view(turned(planes.permute(1, 2, 0).numpy()[upper:lower, left:right], plain.orientation))",
        "test_jpeg.py::test_a_rotation_is_that_of_pillow[6-cropped]"),
    "notes_of_a_camera_passed_over": Mutant(
        "data/pipeline/jpeg.py", "if marker not in _HARMLESS:", "if False:",
        "test_jpeg.py::test_a_rotation_is_that_of_pillow[6-cropped]"),
    "fast_decoder_never_reduces": Mutant(
        "data/pipeline/decode.py", "header.height // down) > 1:", "header.height // down) > 1000:",
        "test_jpeg.py::test_a_reduced_size_is_left_to_pillow"),
    "fast_crop_begins_elsewhere": Mutant(
        "data/pipeline/decode.py", "upper * strides[1] + left * strides[2]", "left * strides[1] + upper * strides[2]",
        "test_jpeg.py::test_the_pixels_are_those_of_pillow[optimized-colour]"),
    "grey_fills_one_channel": Mutant(
        "data/pipeline/decode.py", "sample.copy_(resized)", "sample[:, :1].copy_(resized)",
        "test_decode.py::test_stated_pixels[grey]"),
    "first_piece_of_a_file_for_all": Mutant(
        "data/pipeline/jpeg.py", "content += more", "continue",
        "test_jpeg.py::test_a_file_that_comes_in_pieces_is_read_whole"),
    "samples_read_ahead_take_each_others_place": Mutant(
        "data/pipeline/file_source.py", "files, boxes[part], places[part], strict=True",
        "files, boxes[part], places, strict=False", "test_jpeg.py::test_a_batch_is_its_samples"),
    "boxes_of_the_first_read_ahead_for_all": Mutant(
        "data/pipeline/file_source.py", "map(self._opened, chosen[part], boxes[part])",
        "map(self._opened, chosen[part], boxes)", "test_jpeg.py::test_a_batch_is_its_samples"),
    "batches_without_autograd": Mutant(
        "data/pipeline/file_source.py", "samples = new_samples(len(chosen), self.format)",
        "samples = torch.inference_mode()(new_samples)(len(chosen), self.format)",
        "test_jpeg.py::test_a_batch_lies_as_it_was_decoded[colour]"),
    "memory_of_a_batch_offered_twice": Mutant(
        "data/pipeline/batch_memory.py", "    _offered.set(None)\n", "",
        "test_slots.py::test_a_batch_that_is_filled_in_its_slot_arrives_as_it_is[two]"),
    "memory_of_a_batch_offered_for_ever": Mutant(
        "data/pipeline/batch_memory.py", "_offered.reset(token)", "_offered.set(memory)",
        "test_slots.py::test_a_batch_is_filled_in_its_slot_and_not_copied"),
    "batches_filled_elsewhere_and_copied": Mutant(
        "data/pipeline/slots.py", "with offered(None if slot is None else self._memory(slot)):", "with offered(None):",
        "test_slots.py::test_a_batch_is_filled_in_its_slot_and_not_copied"),
    "targets_written_over_a_batch_in_its_slot": Mutant(
        "data/pipeline/slots.py", "strict=True) if begin is not None), default=0)",
        "strict=True) if begin is not None and not begin + 1), default=0)",
        "test_slots.py::test_a_batch_that_is_filled_in_its_slot_arrives_as_it_is[one]"),
    "a_batch_travels_in_memory_that_is_free": Mutant(
        "data/pipeline/slots.py", "leaf.clone() if _lies_in(leaf, memory) else leaf", "leaf",
        "test_slots.py::test_a_batch_that_cannot_stay_in_its_slot_leaves_it[no-room]"),
    "memory_used_again_at_once": Mutant(
        "data/pipeline/slots.py", "weakref.finalize(array, self._release, sent.slot).atexit = False",
        "self._release(sent.slot)", "test_slots.py::test_batches_that_are_kept_stay_as_they_are"),
    "a_view_does_not_hold_its_memory": Mutant(
        "data/pipeline/slots.py", "memory = torch.from_numpy(array)",
        "memory = torch.frombuffer(self._file.mapped(sent.slot), dtype=torch.uint8)",
        "test_slots.py::test_a_slot_is_free_when_nothing_lies_in_it[view]"),
    "layout_of_the_decoder_reaches_the_model": Mutant(
        "build/inputs.py", "torch.channels_last if channels_last else torch.contiguous_format", "torch.channels_last",
        "test_jpeg.py::test_a_batch_lies_as_it_was_decoded[colour]"),
    "other_files_accepted_on_resume": Mutant(
        "resume.py", 'saved["fingerprint"] != data.fingerprint', "False",
        "test_image_folder.py::test_a_checkpoint_file_knows_its_classes_and_resume_keeps_them"),
    "plugin_classes_unknown_to_workers": Mutant(
        "data/pipeline/workers.py", "        self._imports = Imports()", "        self._imports = None",
        "test_plugin_runs.py::test_killed_run_ends_as_the_unkilled_one[data.num_workers=2]"),
    "plugin_trial_moves_the_generators": Mutant(
        "plugins/trial.py", "    with kept():\n", "    if True:\n",
        "test_plugin_parts.py::test_the_trial_leaves_no_trace"),
    "plugin_trial_moves_buffers": Mutant(
        "plugins/trial.py", "buffer.clone() for", "buffer for",
        "test_plugin_parts.py::test_the_trial_leaves_no_trace"),
    "plugin_traits_move_the_generators": Mutant(
        "plugins/derive.py", "            with kept():\n                known[config, data]",
        "            if True:\n                known[config, data]",
        "test_plugins.py::test_traits_are_those_of_what_is_built"),
    "transforms_alike_in_every_epoch": Mutant(
        "data/pipeline/dataset.py", "_TRANSFORM_STREAM, epoch, index", "_TRANSFORM_STREAM, index",
        "test_plugin_parts.py::test_transforms_depend_on_seed_epoch_and_sample_alone"),
    "transforms_move_the_generators": Mutant(
        "data/pipeline/dataset.py", "        with kept():\n", "        if True:\n",
        "test_plugin_parts.py::test_a_dataset_moves_no_generator"),
    "mean_of_a_plugin_accepted": Mutant(
        "plugins/trial.py", "or first != first:", "or True:", "test_plugin_errors.py::test_a_broken_plugin[mean]"),
    "changed_plugin_resumed": Mutant(
        "plugin_modules.py", "        if changed is None:\n", "        if changed is not None:\n            continue\n"
        "        if changed is None:\n", "test_plugin_runs.py::test_a_changed_plugin"),
    "spec_runs_without_its_plugin": Mutant(
        "plugin_modules.py", "    if missing:\n", "    if False:\n",
        "test_plugin_runs.py::test_a_spec_is_never_run_without_its_plugin"),
    "padding_of_ones": Mutant(
        ALIGNED, "for number in (0, difference)])", "for number in (0, difference)], value=1.0)",
        "test_align.py::test_padding_stays_exactly_zero[mlp-sgd-fp32]"),
    "padded_logits_in_the_loss": Mutant(
        ALIGNED, "outputs[..., : self.out_features]", "outputs", "test_align.py::test_equals_the_unpadded_model[mlp]"),
    "a_file_with_padding": Mutant(
        ALIGNED, "_cut(tensor, true).clone()", "tensor",
        "test_align.py::test_a_state_goes_on_under_the_other_kernels[mlp]"),
    "a_file_with_views_of_padding": Mutant(
        ALIGNED, "_cut(tensor, true).clone()", "_cut(tensor, true)",
        "test_align.py::test_a_file_is_the_unpadded_models"),
    "padded_optimizer_state_in_a_file": Mutant(
        "executors/portable.py", "change(name, value) if isinstance(value, torch.Tensor) else value", "value",
        "test_align.py::test_a_state_goes_on_under_the_other_kernels[cnn]"),
    "a_tied_weight_twice_in_a_file": Mutant(
        "executors/portable.py", "place = tensor.data_ptr(), tensor.shape", "place = name, tensor.shape",
        "test_align.py::test_a_file_is_the_unpadded_models"),
    "groups_padded": Mutant(
        ALIGNED, "or layer.groups == 1", "or True", "test_align.py::test_a_layer_computes_what_it_did[grouped]"),
    "padding_read_past_the_layer": Mutant(
        ALIGNED, 'return _cut(stored, true_shape(layer, "weight"))', "return stored",
        "test_align.py::test_a_layer_computes_what_it_did[read_past_the_layer]"),
    "padding_moved_by_an_optimizer": Mutant(
        "rules/kernels.py", "and not plan.optimizer.elementwise", "and False",
        "test_align.py::test_an_optimizer_that_looks_at_whole_matrices_is_refused"),
    "head_gradients_begin_with_one": Mutant(
        HEAD, "self.seed(total) if seed is None else seed", "torch.ones(())",
        "test_linear_cross_entropy.py::test_gradients_in_fp16_begin_with_the_loss_scale[16.0]"),
    "head_outside_autocast": Mutant(
        HEAD, "with self.context():", "if True:",
        "test_linear_cross_entropy.py::test_gradients_in_fp16_begin_with_the_loss_scale[16.0]"),
    "divisor_of_a_full_batch": Mutant(
        HEAD, "outer[0] / ctx.seed", "outer[0] / outer[0]",
        "test_linear_cross_entropy.py::test_the_divisor_is_the_number_of_valid_targets[5]"),
    "head_trained_by_the_last_chunk": Mutant(
        HEAD, "    if not sums:", "    if True:", f"{WHOLE_LOGITS}[gpt-chunks]"),
    "logits_from_a_frozen_head": Mutant(
        "kernels/linear_cross_entropy.py", "if module.training else", "if layer.training else",
        f"{WHOLE_LOGITS}[char_lstm-frozen_head]"),
    "one_chunk_of_everything": Mutant(
        "build/execution.py", "chunk_tokens=chunk_tokens,", "chunk_tokens=1 << 40,",
        "test_linear_cross_entropy.py::test_the_logits_of_all_tokens_never_exist_together"),
    "evaluation_of_whole_logits": Mutant(
        "evaluating.py", "batch_size=run.plan.evaluation_batch", "batch_size=run.plan.batching.micro_batch",
        "test_linear_cross_entropy.py::test_the_logits_of_all_tokens_never_exist_together"),
    "fp16_sums_on_a_card_that_gains_nothing": Mutant(
        "precision/amp.py", 'config.accumulate == "fp16" and why is None', 'config.accumulate == "fp16"',
        "test_fp16_accumulation.py::test_where_it_is_used[h200]"),
    "fp16_sums_of_the_last_run_stay_on": Mutant(
        "precision/amp.py", 'flags=(("backends.cuda.matmul.allow_fp16_accumulation", accumulates),)',
        'flags=(("backends.cuda.matmul.allow_fp16_accumulation", True),) * accumulates',
        "test_fp16_accumulation.py::test_where_it_is_used[rtx4090-fp32]"),
    "mfu_of_fp16_sums_against_the_slower_peak": Mutant(
        "card.py", '(dtype, accumulation) == ("float16", "float16")', "False",
        "test_fp16_accumulation.py::test_where_it_is_used[rtx4090]"),
    "float8_layers_in_bf16": Mutant(
        "precision/fp8.py", "lambda _, name: name in names", "lambda _, name: False",
        "test_fp8.py::test_a_layer_is_the_product_of_rounded_numbers[tensorwise]"),
    "one_scale_for_all_rows": Mutant(
        "precision/fp8.py", "from_recipe_name(recipe)", 'from_recipe_name("tensorwise")',
        "test_fp8.py::test_a_layer_is_the_product_of_rounded_numbers[rowwise]"),
    "float8_output": Mutant(
        "precision/fp8.py", "if name not in last]", "]", "test_fp8.py::test_layers[last-left]"),
    "tied_head_in_float8": Mutant(
        "precision/fp8.py", " and uses[id(layer.weight)] == 1", "", "test_fp8.py::test_layers[tied]"),
    "float8_of_any_size": Mutant(
        "precision/fp8.py", "layer.out_features % MULTIPLE == 0", "layer.out_features % MULTIPLE",
        "test_fp8.py::test_layers[odd]"),
    "float8_without_autocast": Mutant(
        "precision/fp8.py", "        context=bfloat16_autocast,\n", "",
        "test_fp8.py::test_norms_are_computed_in_fp32_and_the_head_in_bf16"),
    "float8_on_any_card": Mutant(
        "rules/precision.py", " >= FLOAT8_CAPABILITY", " > (0, 0)",
        "test_fp8.py::test_a_card_without_float8_is_refused[rtx3090]"),
    "attention_by_any_backend": Mutant(
        "build/__init__.py", "(plan.precision.context, *plan.kernels.contexts)", "(plan.precision.context,)",
        "test_sdpa.py::test_the_backend_is_active[math-none-1]"),
    "recomputed_by_any_backend": Mutant(
        CHECKPOINT, "with cloned_buffers(blocks), only(backends)", "with cloned_buffers(blocks)",
        "test_sdpa.py::test_the_backend_is_active[math-checkpoint-2]"),
    "backend_not_in_the_key": Mutant(
        "kernels/fused.py", "*dtypes, *allowed_backends()]", "*dtypes]",
        "test_sdpa.py::test_each_backend_has_its_own_key_in_the_compilers_cache"),
    "flash_in_fp32": Mutant(
        "rules/attention.py", 'in ("float32", "tf32")', 'in ("tf32",)',
        "test_sdpa.py::test_a_backend_that_is_not_there[flash-fp32]"),
    "mode_forgotten": Mutant(
        "kernels/fused.py", "list_mode_options(mode)", 'list_mode_options("default")',
        "test_fused.py::test_a_mode_reaches_the_compiler"),
    "accumulation_into_graphs": Mutant(
        "rules/compilation.py", "batching.accumulation > 1", "batching.accumulation > 99",
        "test_fused.py::test_graphs_of_the_compiler_refuse_accumulation"),
    "scripted_mode_never_changes": Mutant(
        "kernels/script.py", "if module.training != in_step_with:", "if in_step_with is None:",
        "test_script.py::test_frozen_parts_stay_in_evaluation_mode"),
    "scripted_parts_in_one_mode": Mutant(
        "kernels/script.py", "twin.training = each.training", "twin.training = module.training",
        "test_script.py::test_frozen_parts_stay_in_evaluation_mode"),
    "nothing_scripted": Mutant(
        "kernels/script.py", "            unit.forward = _in_step", "            _in_step",
        "test_script.py::test_equals_eager[mlp-fp32]"),
    "script_over_recomputation": Mutant(
        "rules/compilation.py", "(replaced or plan", "(plan",
        "test_script.py::test_what_replaces_a_forward_is_refused[checkpoint]"),
    "every_loss_is_called_the_same": Mutant(
        "ablation/parity.py", "if differences[worst] <= allowed[worst] else", "if True else",
        "test_parity.py::test_verdicts"),
    "losses_behind_a_skipped_update_compared": Mutant(
        "ablation/parity.py", "min(num_losses, len(allowed), skipped + 1)", "min(num_losses, len(allowed))",
        "test_parity.py::test_verdicts[skipped]"),
    "losses_of_amplified_noise_compared": Mutant(
        "ablation/parity.py", "if amplified > AMPLIFIED and allowed:", "if False:",
        "test_parity.py::test_verdicts[amplified]"),
    "a_twin_without_noise": Mutant(
        "measuring.py", "_disturb(run, wish.noise)", "_disturb(run, 0.0)",
        "test_parity.py::test_noise_is_another_start"),
    "warm_up_in_the_speed": Mutant(
        "measuring.py", "points.windows.clear()", "pass", "test_parity.py::test_the_warm_up_is_in_no_speed"),
    "all_operators_called_recomputed": Mutant(
        "executors/activity.py", "    return parent is not None\n", "    return True\n",
        "test_parity.py::test_a_witness_tells_what_ran[fp32]"),
    "an_option_that_was_not_seen_is_trusted": Mutant(
        "ablation/proof.py", "arithmetic in products or (replayed", "True or (replayed",
        "test_parity.py::test_what_was_not_seen_is_doubted[amp-off]"),
    "a_failed_baseline_forgiven": Mutant(
        "ablation/__init__.py", 'each.exit_code or 1 for each in', '0 for each in',
        "test_ablation.py::test_a_failed_baseline_is_the_exit_code[oom]"),
    "rows_measured_again": Mutant(
        "ablation/measure.py", "if each.digest in known and each.status in FINAL]", "if False]",
        "test_ablation.py::test_a_resume_goes_on_from_what_is_measured"),
    "cap_not_applied": Mutant(
        "process.py", "            _cap_memory(place, cap_gib)\n", "",
        "test_memory_cap.py::test_what_torch_is_told[half]"),
    "cap_of_an_earlier_run_stays": Mutant(
        "process.py", "    torch.cuda.set_per_process", "    cap_gib and torch.cuda.set_per_process",
        "test_memory_cap.py::test_what_torch_is_told[none]"),
    "trained_without_its_cap": Mutant(
        "session.py", "self._plan.memory_cap.gib", "None",
        "test_memory_cap.py::test_who_takes_a_device_hands_the_cap_on[8-train]"),
    "cap_above_the_card": Mutant(
        "memory_cap.py", "cap.gib * MIB_PER_GIB <= card.memory_mib", "cap.gib <= card.memory_mib",
        "test_memory_cap.py::test_a_cap_that_is_none[above]"),
    "exhausted_within_a_cap_that_is_not_named": Mutant(
        "failure.py", 'f" within {KEY}={cap_gib:g}"', '""',
        "test_memory_cap.py::test_exhausted_memory_names_the_cap[cap]"),
    "gradients_of_ranks_averaged_only": Mutant(
        "executors/replicated.py", " * self._ranks.size)\n",
        ")\n",
        "test_ddp.py::test_two_ranks_are_one_process[mlp-ragged-accumulated]"),
    "never_exchanged": Mutant(
        "executors/replicated.py", "number == len(parts) - 1 and not some_idle",
        "False and not some_idle",
        "test_ddp.py::test_two_ranks_are_one_process[mlp-ragged-accumulated]"),
    "exchanged_in_every_micro_batch": Mutant(
        "executors/replicated.py", "number == len(parts) - 1 and not some_idle",
        "not some_idle",
        "test_ddp.py::test_gradients_are_exchanged_once_an_update[1-6]"),
    "an_idle_rank_keeps_its_gradients": Mutant(
        "executors/replicated.py", "            average(self._parameters, self._ranks)\n",
        "            pass\n",
        "test_ddp.py::test_tail_of_an_epoch[11 samples]"),
    "targets_of_the_share": Mutant(
        "data/pipeline/shared.py", "targets, count(part), whole",
        "targets, len(samples.targets), whole",
        "test_ddp.py::test_two_ranks_are_one_process[mlp-ragged-accumulated]"),
    "every_rank_draws_alike": Mutant(
        "executors/replicated.py", "rank * batching.accumulation + number))",
        "number))",
        "test_ddp.py::test_dropout_is_drawn_for_a_micro_batch[mlp-none-2]"),
    "statistics_of_one_rank": Mutant(
        "executors/replicated.py", "        self._buffers.exchange()\n",
        "",
        "test_ddp.py::test_batch_norm_of_replicas[2]"),
    "counters_of_all_ranks_averaged": Mutant(
        "executors/buffers.py", "flat[num_means:].to(",
        "(flat[num_means:] / self._ranks.size).to(",
        "test_ddp.py::test_batch_norm_of_replicas[2]"),
    "evaluated_by_every_rank": Mutant(
        "data/pipeline/share.py", "self.stride == self.rank]",
        "self.stride >= 0]",
        "test_ddp.py::test_an_evaluation_counts_every_sample_once[means]"),
    "evaluation_of_one_rank": Mutant(
        "evaluating.py", "        sums = self._ranks.sums(sums)\n",
        "",
        "test_ddp.py::test_an_evaluation_counts_every_sample_once[means]"),
    "a_lost_peer_is_the_cause": Mutant(
        "launch/verdict.py", "return end.killed, lost_contact, ",
        "return end.killed, False, ",
        "test_ranks.py::test_the_first_rank_that_failed_is_named[killed before it was noticed]"),
    "digest_dropped_before_its_file": Mutant(
        "checkpoint_file.py", "for path in sorted((run_folder / FOLDER).glob(\"step-*\")):",
        "for path in (run_folder / FOLDER).glob(\"step-*\"):",
        "test_checkpoint_file.py::test_no_file_is_ever_without_its_digest"),
}  # fmt: skip
