"""Planted edits of bert_jax: kind, file, text, what it becomes, tests that notice it."""

from tests.mutants.mutant import RULE, WIRING, make_mutants

_TOP = (
    (
        WIRING,
        "replay.py",
        "names[step_rows.store_B[number]]",
        "names[0]",
        "trainer/test_mixture.py::test_replay_names_the_store_of_each_row",
    ),
    (
        RULE,
        "replay.py",
        '" " * (token.starts_word or not text)',
        '" "',
        "test_replay.py::test_a_row_by_hand",
    ),
)
_BASELINES = (
    (
        RULE,
        "lab/baselines/cove.py",
        "return (new_states, adjusted_BU), adjusted_BU",
        "return (new_states, zeros_BU), adjusted_BU",
        "lab/baselines/test_cove.py::test_states_and_losses_are_those_of_the_equations",
    ),
    (
        WIRING,
        "lab/baselines/frozen_task.py",
        'train_TKD = vectors["train"]',
        'train_TKD = vectors["dev"]',
        "lab/baselines/test_frozen_task.py::test_vectors_are_scaled_by_their_size_in_train",
    ),
    (
        WIRING,
        "lab/baselines/frozen_task.py",
        "(rows.token_ids + vocab_size * text_T)",
        "(rows.token_ids + text_T)",
        "lab/baselines/test_frozen_task.py::test_counts_are_those_of_the_texts",
    ),
)
_CHECKPOINT = (
    (
        WIRING,
        "checkpoint/manager.py",
        '"run": self._run,',
        '"run": {},',
        "checkpoint/test_manager.py::test_the_receipt_says_what_is_held_and_what_made_it",
    ),
    (
        WIRING,
        "checkpoint/manager.py",
        'list_differences(receipt["run"], self._run)',
        "list_differences(self._run, self._run)",
        "trainer/test_pinned_vocabulary.py::test_a_checkpoint_of_another_vocabulary_is_not_resumed",
    ),
    (
        RULE,
        "checkpoint/directory.py",
        "i >= newest or (every > 0 and saved.step > 0",
        "i > newest or (every > 0 and saved.step > 0",
        "checkpoint/test_manager.py::test_the_newest_stay_and_every_kth_for_good_but_not_the_fresh_one",
    ),
    (
        RULE,
        "checkpoint/arrays.py",
        "is_padding = is_padding | (along >= jnp.uint32(size))",
        "is_padding = is_padding | (along > jnp.uint32(size))",
        "checkpoint/test_fingerprint.py::test_padding_does_not_count_whatever_it_holds",
    ),
)
_CONFIG = (
    (
        RULE,
        "config/validate.py",
        "max_predictions_per_seq >= wanted,",
        "max_predictions_per_seq >= wanted - 1,",
        "config/test_validate.py::test_slots_that_cannot_hold_the_share_of_masks_are_refused",
    ),
    (
        RULE,
        "config/phases.py",
        "return max(1, min(wanted, seq_len - 3))",
        "return max(1, min(wanted, seq_len))",
        "config/test_schema.py::test_slots_follow_from_length_and_masking_rate",
    ),
    (
        WIRING,
        "config/phases.py",
        "        for phase in config.phases[:index]\n        if phase.seq_len",
        "        for phase in config.phases[: index + 1]\n        if phase.seq_len",
        "config/test_schema.py::test_rows_of_phases_of_one_length_follow_each_other",
    ),
    (
        RULE,
        "config/phases.py",
        "sum(step > phase_start(config, index)",
        "sum(step >= phase_start(config, index)",
        "config/test_schema.py::test_rows_of_phases_of_one_length_follow_each_other",
    ),
)
_MONITORING = (
    (
        WIRING,
        "monitoring/run_state.py",
        "if step <= last.get(split, -1):",
        "if step < last.get(split, -1):",
        "monitoring/test_curves.py::test_a_repeated_step_replaces_the_steps_from_it_on_in_its_split",
    ),
    (
        WIRING,
        "monitoring/run_state.py",
        "for (name, _), (steps, values) in curves.items():\n        if name == split:",
        "for (name, _), (steps, values) in curves.items():\n        if name:",
        "monitoring/test_curves.py::test_a_repeated_step_replaces_the_steps_from_it_on_in_its_split",
    ),
)
_FINETUNING = (
    (
        WIRING,
        "finetuning/setup.py",
        "parts.mesh, config.seed)",
        "parts.mesh, 0)",
        "finetuning/test_setup.py::test_the_seed_draws_the_layer_of_the_task",
    ),
    (
        WIRING,
        "finetuning/feed.py",
        "(step - 1) * batch_size + np.arange",
        "step * batch_size + np.arange",
        "finetuning/test_setup.py::test_the_batch_of_a_step_has_the_examples_that_its_record_names",
    ),
    (
        WIRING,
        "finetuning/feed.py",
        "order = config.data.order_seed, config.batch_size",
        "order = config.seed, config.batch_size",
        "finetuning/test_setup.py::test_the_batch_of_a_step_has_the_examples_that_its_record_names",
    ),
    (
        WIRING,
        "finetuning/objectives.py",
        "return _token_logits(bert, batch, hidden_BSD, None)",
        "return _token_logits(bert, batch, hidden_BSD, dropout)",
        "finetuning/test_objectives.py"
        "::test_a_layer_reads_what_is_dropped_out_as_the_encoder_is[span]",
    ),
    (
        WIRING,
        "finetuning/objectives.py",
        "rows_BC = dropout.rows_B[:, None] * jnp.uint32(choices)",
        "rows_BC = dropout.rows_B[:, None]",
        "finetuning/test_objectives.py"
        "::test_a_layer_reads_what_is_dropped_out_as_the_encoder_is[choose]",
    ),
    (
        RULE,
        "finetuning/objectives.py",
        "scale=causal_weight",
        "scale=1.0",
        "finetuning/test_objectives.py::test_a_causal_model_also_learns_the_texts_of_its_task",
    ),
    (
        RULE,
        "finetuning/objectives.py",
        "(nll[0] + nll[1]) / 2.0 * weights_B",
        "(nll[0] + nll[1]) * weights_B",
        "finetuning/test_objectives.py::test_sums_are_those_of_the_logits_and_rows_that_fill_up_count_for_nothing",
    ),
    (
        RULE,
        "finetuning/prune.py",
        "jnp.square(jnp.sum(w_FD * dw_FD, axis=1))",
        "jnp.sum(jnp.square(w_FD * dw_FD), axis=1)",
        "finetuning/test_prune.py::test_importance_is_the_square_of_the_slope_of_each_neurons_gate",
    ),
    (
        WIRING,
        "finetuning/prune.py",
        "map_like_params(lambda leaf, cut: cut(leaf), state, cuts)",
        "TrainState(state.step, jax.tree.map(lambda leaf, cut: cut(leaf), state.params, cuts), "
        "state.opt_state, state.guard)",
        "finetuning/test_prune.py::test_parameters_and_moments_lose_the_same_neurons_on_a_mesh",
    ),
)
_INFERENCE = (
    (
        WIRING,
        "inference/pseudo_likelihood.py",
        'template, special_ids["mask"]',
        'template, special_ids["unk"]',
        "inference/test_pseudo_likelihood.py::test_each_token_is_masked_in_turn",
    ),
    (
        WIRING,
        "inference/pseudo_likelihood.py",
        "np.add.at(totals_N, group[sentence_R[index_B]]",
        "np.add.at(totals_N, sentence_R[index_B]",
        "inference/test_pseudo_likelihood.py::test_sentences_that_do_not_fit_into_memory_together_score_the_same",
    ),
    (
        WIRING,
        "inference/batches.py",
        "inside: tuple[Any, ...] = (index_B, *map",
        "inside: tuple[Any, ...] = (np.sort(index_B), *map",
        "inference/test_batches.py::test_outputs_are_collected_in_the_order_of_the_examples",
    ),
    (
        RULE,
        "inference/retrieval.py",
        "for number, name in enumerate(sorted(texts))",
        "for number, name in enumerate(texts)",
        "inference/test_retrieval.py::test_a_collection_has_its_documents_by_id_and_its_graded_queries",
    ),
    (
        RULE,
        "inference/retrieval.py",
        "    first += len(vectors_BD)",
        "    first += len(best)",
        "inference/test_retrieval.py::test_scores_equal_trec_evals",
    ),
)
_INTEROP = (
    (
        WIRING,
        "interop/tensor_names.py",
        "array = leaf.T if tensor.is_transposed else leaf",
        "array = leaf",
        "interop/test_export.py::test_numbers_leave_in_the_units_of_their_table",
    ),
    (
        WIRING,
        "interop/load.py",
        "config = record.config_at(step)",
        "config = record.config_at(0)",
        "trainer/test_phase_objectives.py"
        "::test_a_checkpoint_is_read_with_the_base_it_was_trained_with",
    ),
    (
        RULE,
        "interop/families/deberta.py",
        '"relative_attention": True, "conv_kernel_size": 0, ',
        '"relative_attention": True, ',
        "interop/test_huggingface.py::test_a_config_of_something_else_is_refused",
    ),
    (
        WIRING,
        "interop/transformers_class.py",
        'kind = words.kind if words.file_name == vocabulary.TOKENIZER else ""',
        "kind = words.kind",
        "interop/test_export.py::test_a_bare_model_with_robertas_padding_is_read_back_as_a_roberta",
    ),
    (
        WIRING,
        "interop/warm_start.py",
        "known.encode(vocabulary.spell(new))",
        "known.encode([pieces[i] for i in new])",
        "interop/test_warm_start.py::test_rows_of_new_pieces_are_means_of_what_they_were_cut_into",
    ),
    (
        WIRING,
        "interop/families/roberta.py",
        "config, max_position_embeddings=rows)",
        "config, max_position_embeddings=rows + 1)",
        "interop/test_families.py::test_a_config_and_its_arrays_come_back_as_they_went",
    ),
    (
        WIRING,
        "interop/families/bert.py",
        '"attention/query": "attention.self.query",\n        "attention/key": "attention.self.key"',
        '"attention/query": "attention.self.key",\n        "attention/key": "attention.self.query"',
        "interop/test_families.py"
        "::test_hidden_states_loss_and_gradients_are_those_of_transformers[RobertaForMaskedLM]",
    ),
)
_BENCHMARKING = (
    (
        RULE,
        "benchmarking/checks.py",
        "for check in made if not check.is_sound",
        "for check in made if not check.errors",
        "test_doctor.py::test_a_kernel_that_differs_is_wrong",
    ),
    (
        WIRING,
        "benchmarking/checks.py",
        'find_kernels_of("auto", mesh, seq_len, model',
        'find_kernels_of("auto", mesh, 512, model',
        "test_doctor.py::test_a_kernel_that_differs_is_wrong",
    ),
)
_MODEL = (
    (
        RULE,
        "model/attention/verify.py",
        "return not self.wrong_mask_bits and max(",
        "return max(",
        "model/attention/test_verify.py::test_each_result_and_each_bit_counts",
    ),
    (
        WIRING,
        "model/dropout.py",
        "layer=layer, site=ATTENTION_WEIGHTS",
        "layer=0, site=ATTENTION_WEIGHTS",
        "model/test_bert.py::test_outputs_are_those_of_a_numpy_bert",
    ),
    (
        WIRING,
        "model/encoder.py",
        "drop_weights(dropout, self.weights_rate, layer)",
        "drop_weights(dropout, self.config.hidden_dropout_prob, layer)",
        "model/test_bert.py::test_outputs_are_those_of_a_numpy_bert",
    ),
    (
        WIRING,
        "model/embeddings.py",
        "self.dropout_layer = config.num_hidden_layers",
        "self.dropout_layer = 0",
        "model/test_bert.py::test_outputs_are_those_of_a_numpy_bert",
    ),
    (
        RULE,
        "model/relative.py",
        "score_keys(k_BSHK, self.query or query, rows_M)",
        "score_keys(k_BSHK, self.query or query, rows_M[::-1])",
        "model/test_disentangled.py::test_terms_are_products_with_the_distance_between_query_and_key",
    ),
    (
        RULE,
        "model/heads.py",
        "x_BSD = self.layer_norm(x_BSD + cls_BSD)",
        "x_BSD = self.layer_norm(x_BSD) + cls_BSD",
        "model/test_disentangled.py::test_a_detector_reads_the_norm_of_a_token_plus_its_cls",
    ),
    (
        RULE,
        "model/bert.py",
        "self._layers_in_order()[-1:] * 2",
        "self._layers_in_order()[-1:]",
        "model/test_disentangled.py::test_a_mask_decoder_reads_the_layer_before_the_last_twice",
    ),
    (
        RULE,
        "model/relative.py",
        "np.float32(near - 1)) + near",
        "np.float32(near)) + near",
        "model/test_disentangled.py::test_distances_have_the_buckets_of_transformers",
    ),
    (
        RULE,
        "model/dropout.py",
        "jnp.uint32(layer * 64 + site)",
        "jnp.uint32(layer * 4 + site)",
        "model/test_dropout.py::test_dropout_is_the_hash_of_its_counters_along_the_last_axis",
    ),
    (
        RULE,
        "model/heads.py",
        "jnp.where(ids_V < vocab_size,",
        "jnp.where(ids_V <= vocab_size,",
        "model/test_losses.py::test_rows_past_the_vocabulary_have_no_weight",
    ),
    (
        RULE,
        "model/attention/blocks.py",
        "scale = (q_BSHK.shape[-1] * (1 + len(terms))) ** -0.5",
        "scale = (q_BSHK.shape[1] * (1 + len(terms))) ** -0.5",
        "model/test_bert.py::test_outputs_are_those_of_a_numpy_bert",
    ),
    (
        WIRING,
        "model/attention/blocks.py",
        "weights_BHST = drop(jax.nn.softmax(scores_BHST, axis=-1).astype(v_BTHK.dtype))",
        "weights_BHST = jax.nn.softmax(scores_BHST, axis=-1).astype(v_BTHK.dtype)",
        "model/test_bert.py::test_outputs_are_those_of_a_numpy_bert",
    ),
    (
        RULE,
        "model/ops.py",
        "quantize(x, axis=-1)",
        "quantize(x, axis=None)",
        "model/test_int8.py::test_a_product_is_of_whole_numbers_with_a_scale_a_token_and_a_channel",
    ),
)
_PARALLEL = (
    (
        WIRING,
        "parallel/mesh.py",
        "np.searchsorted(rows, np.arange(batch_size)[index[0]])",
        "np.arange(batch_size)[index[0]] % len(rows)",
        "parallel/test_device_grid.py::test_a_device_gets_its_rows_of_those_that_its_process_has",
    ),
    (
        RULE,
        "parallel/mesh.py",
        "tile = VOCAB_TILE * model_size",
        "tile = VOCAB_TILE",
        "parallel/test_device_grid.py"
        "::test_the_vocabulary_is_padded_to_whole_tiles_on_each_device_of_the_model_axis",
    ),
    (
        RULE,
        "parallel/collectives.py",
        "piece = part.shape[dim] // size",
        "piece = part.shape[0] // size",
        "parallel/test_collectives.py"
        "::test_a_long_axis_takes_rounds_of_reduce_scatters_or_on_v5e_an_all_reduce",
    ),
)
_PLANNING = (
    (
        RULE,
        "planning/hlo_cost.py",
        "return 2 * share * result_bytes",
        "return share * result_bytes",
        "planning/test_hlo_cost.py::test_between_slices_the_network_is_counted",
    ),
    (
        WIRING,
        "planning/plan.py",
        "usd_spot=_multiply(chip_hours, spot),",
        "usd_spot=_multiply(chip_hours, on_demand),",
        "planning/test_plan_report.py::test_a_plan_has_the_cost_on_demand_and_on_spot_chips",
    ),
)
_LOGGING = (
    (
        RULE,
        "logging/statistics.py",
        "differences.std(ddof=1)",
        "differences.std(ddof=0)",
        "logging/test_statistics.py::test_a_paired_difference_is_that_of_scipy",
    ),
    (
        WIRING,
        "logging/metrics_writer.py",
        "truncate_records(self._workdir / METRICS, step, read_lines)",
        "truncate_records(self._workdir / METRICS, step + 1000, read_lines)",
        "monitoring/test_rules.py"
        "::test_findings_are_written_once_also_by_a_run_that_resumes_or_rolls_back",
    ),
    (
        WIRING,
        "train_step/schedule.py",
        "*(-1, 0, ramp.warmup_steps - 1, ramp.warmup_steps),",
        "*(-1, 0),",
        "logging/test_plots.py::test_rates_are_those_of_the_schedule_and_every_bend_is_among_them",
    ),
)
_RUNTIME = (
    (
        WIRING,
        "runtime/watchdog.py",
        "            self._work = outer",
        "            self._work = None",
        "runtime/test_watchdog.py::test_an_outer_piece_of_work_has_its_own_limit_again_behind_an_inner_one",
    ),
    (
        WIRING,
        "runtime/watchdog.py",
        "                outer.secs = 0.0",
        "                pass",
        "runtime/test_watchdog.py::test_an_outer_piece_of_work_has_its_own_limit_again_behind_an_inner_one",
    ),
    (
        RULE,
        "runtime/goodput.py",
        "secs[LOST] += spent - of_kept_steps",
        "secs[LOST] += spent",
        "runtime/test_goodput.py::test_an_older_checkpoint_loses_steps_of_several_attempts",
    ),
    (
        WIRING,
        "runtime/run_record.py",
        '{f"phases[{i}].steps": phase.steps for i, phase in enumerate(config.phases[:-1])}',
        "{}",
        "runtime/test_run_record.py::test_what_would_be_another_run_is_refused_by_name",
    ),
)
_BUDGETS = (
    (
        RULE,
        "planning/fit.py",
        "_USUAL_WEIGHT * USUAL_NOISE**2",
        "USUAL_NOISE**2",
        "planning/test_law.py::test_the_noise_is_that_of_the_residuals_and_of_two_usual_points",
    ),
    (
        WIRING,
        "planning/fit.py",
        "parameters=12 * layers * width**2,",
        "parameters=12 * layers * width,",
        "planning/test_law.py::test_ours_meets_the_table_and_runs_that_it_has_not_seen",
    ),
)
_LAB = (
    (
        WIRING,
        "lab/study.py",
        "settings = _describe_settings(flatten(recorded(config)))",
        "settings = flatten(recorded(config))",
        "lab/test_study.py::test_a_task_is_its_examples_and_settings",
    ),
    (
        WIRING,
        "lab/row_kind.py",
        "[*build_flags(task.flags), *build_flags(run.row.finetune)]",
        "[*build_flags(run.row.finetune), *build_flags(task.flags)]",
        "lab/test_study.py::test_commands_of_a_task",
    ),
    (
        WIRING,
        "lab/kinds.py",
        "6.0 * tokens * 2 * direction",
        "6.0 * tokens * direction",
        "lab/test_study.py::test_baselines_read_as_many_tokens_as_they_are_told",
    ),
    (
        WIRING,
        "lab/report.py",
        "_compare(result, reference, m)",
        "_compare(reference, result, m)",
        "lab/test_study.py::test_report_has_means_differences_reasons_and_failures",
    ),
)
_TASKS = (
    (
        RULE,
        "tasks/metrics.py",
        "pos_label=1",
        "pos_label=0",
        "tasks/test_metrics.py::test_accuracy_f1_and_matthews_correlation_by_their_formulas",
    ),
    (
        WIRING,
        "tasks/multiple_choice.py",
        "make_constant_logits(train_answers_N, CHOICES",
        "make_constant_logits(train_answers_N[:1], CHOICES",
        "tasks/test_multiple_choice.py::test_accuracy_and_the_most_frequent_answer_of_training",
    ),
    (
        WIRING,
        "tasks/glue/task.py",
        'make_constant_logits(labels["train"], classes',
        "make_constant_logits(labels[first.split], classes",
        "tasks/glue/test_task.py::test_each_task_is_read_from_its_published_layout",
    ),
    (
        RULE,
        "tasks/glue/task.py",
        "np.clip(logits[:, 0], STSB_MIN, STSB_MAX)",
        "logits[:, 0]",
        "tasks/glue/test_task.py::test_similarities_are_clipped_with_three_decimals",
    ),
    (
        RULE,
        "tasks/ner/conlleval.py",
        '*[f"I-{kind}"] * (end - start - 1)',
        '*[f"B-{kind}"] * (end - start - 1)',
        "tasks/ner/test_conlleval.py::test_iob2_begins_every_entity_with_b",
    ),
    (
        WIRING,
        "tasks/ner/conlleval.py",
        "Counts(in_text[kind], claimed[kind], correct[kind])",
        "Counts(claimed[kind], in_text[kind], correct[kind])",
        "tasks/ner/test_conlleval.py::test_the_report_is_that_of_conlleval_to_the_last_digit",
    ),
    (
        RULE,
        "tasks/squad/metrics.py",
        "if null_odds[question_id] > threshold else",
        "if null_odds[question_id] >= threshold else",
        "tasks/squad/test_metrics.py::test_the_threshold_that_is_best",
    ),
    (
        WIRING,
        "tasks/squad/metrics.py",
        'for name, scores in (("exact", exact), ("f1", f1s)):',
        'for name, scores in (("exact", exact), ("f1", exact)):',
        "tasks/squad/test_metrics.py::test_version_2_with_odds",
    ),
)
_HISTORY = "runtime/test_history.py"
_WHOLE_STEP = "train_step/test_step.py::test_a_step_is_made_of_the_parts_of_its_own_number"
_TRAIN_STEP = (
    (
        WIRING,
        "model/bert.py",
        "seed=dropout.seed ^ jnp.uint32(_TARGETS)",
        "seed=dropout.seed",
        "train_step/test_permutation.py::test_each_stream_drops_out_by_masks_of_its_own",
    ),
    (
        WIRING,
        "train_step/step.py",
        "step=state.step.astype",
        "step=jnp.zeros(()).astype",
        _WHOLE_STEP,
    ),
    (
        WIRING,
        "train_step/schedule.py",
        "divmod(min(step, last)",
        "divmod(min(step + 1, last)",
        _WHOLE_STEP,
    ),
    (
        RULE,
        "runtime/history.py",
        "leaf.config.guard.spike_sigmas > 0)",
        "False)",
        f"{_HISTORY}::test_a_phase_that_begins_in_one_run_alone_matters_where_the_guard_judges",
    ),
    (
        WIRING,
        "runtime/history.py",
        "(before != now) | (own != own_now)",
        "own != own_now",
        f"{_HISTORY}::test_another_store_sampler_dropout_or_device_count_is_a_difference",
    ),
    (
        RULE,
        "train_step/schedule.py",
        "now = jnp.where(done <= skipped, ramp.peak, now)",
        "pass",
        "train_step/test_optimizers.py::test_a_decay_of_its_last_steps_begins_at_the_peak_exactly",
    ),
    (
        WIRING,
        "train_step/step.py",
        "compute, others, moved,",
        "compute, others, first,",
        "train_step/test_generator_first.py::test_two_steps_are_those_of_two_optimizers_in_turn",
    ),
    (
        RULE,
        "train_step/optimizers.py",
        "if name != apart}) | clip(part)",
        "if name != apart}) | part",
        "train_step/test_generator_first.py::test_two_steps_are_those_of_two_optimizers_in_turn",
    ),
    (WIRING, "train_step/step.py", "rate, state.step)", "rate, state.step - 1)", _WHOLE_STEP),
    (WIRING, "train_step/step.py", "jnp.uint32(config.seed)", "jnp.uint32(0)", _WHOLE_STEP),
    (
        WIRING,
        "train_step/step.py",
        "opt_state, window), sums",
        "opt_state, state.guard), sums",
        _WHOLE_STEP,
    ),
    (
        RULE,
        "train_step/optimizers.py",
        "epsilon**2",
        "epsilon",
        "train_step/test_optimizers.py::test_stable_adam_measures_small_gradients_against_the_square_of_epsilon",
    ),
    (
        WIRING,
        "train_step/schedule.py",
        "phase.restart_warmup_steps,\n",
        "optim.warmup_steps,\n",
        "train_step/test_optimizers.py::test_a_phase_can_restart_the_schedule",
    ),
    (
        RULE,
        "train_step/guard.py",
        "count >= config.window_steps",
        "count > config.window_steps",
        "train_step/test_guard.py::test_it_calls_the_steps_bad_that_numpy_does",
    ),
    (
        WIRING,
        "train_step/objectives/mlm_nsp.py",
        'batch["next_sentence_labels"], batch["next_sentence_weights"]',
        'batch["next_sentence_labels"], jnp.ones_like(batch["next_sentence_weights"])',
        "train_step/test_objectives.py"
        "::test_packed_rows_have_the_metrics_and_gradients_of_their_examples",
    ),
    (
        WIRING,
        "train_step/objectives/rtd.py",
        "None if dropout is None else dropout.for_generator()",
        "dropout",
        "train_step/test_rtd.py::test_with_weight_0_the_generator_learns_as_from_masked_words_alone",
    ),
    (
        RULE,
        "train_step/objectives/distillation.py",
        "temperature**2 * jnp.sum",
        "temperature * jnp.sum",
        "train_step/test_distillation.py::test_losses_are_those_of_numpy",
    ),
)
_TRAINER = (
    (
        WIRING,
        "trainer/feed.py",
        "            first_row=config_lib.first_row(self.config, index),",
        "            first_row=0,",
        "trainer/test_mixture.py"
        "::test_the_batch_of_a_step_has_the_rows_that_follow_those_of_the_step_before",
    ),
    (
        WIRING,
        "trainer/feed.py",
        "(phase.steps * phase.batch_size, make_schedule(self.weights(number)))",
        "(phase.steps, make_schedule(self.weights(number)))",
        "trainer/test_mixture.py"
        "::test_shares_follow_tokens_by_temperature_or_the_weights_of_the_phase",
    ),
    (
        WIRING,
        "trainer/bad_steps.py",
        "progress.left_out_steps += last - step",
        "progress.left_out_steps += last",
        "trainer/test_bad_steps.py"
        "::test_a_bad_last_step_of_a_run_still_ends_it_evaluated_and_saved",
    ),
    (
        RULE,
        "trainer/readings.py",
        "self._progress.timed_sequences += rows * self.facts.examples_per_row",
        "self._progress.timed_sequences += rows",
        "trainer/test_throughput.py"
        "::test_a_row_counts_as_the_examples_in_it_and_its_pace_foretells",
    ),
    (
        WIRING,
        "trainer/prefetch.py",
        "return self._wait_until_at_most(STEPS_AHEAD - 1)",
        "return self._wait_until_at_most(STEPS_AHEAD)",
        "trainer/test_prefetch.py::test_there_is_room_again_only_when_the_oldest_step_has_ended",
    ),
    (
        WIRING,
        "trainer/heldout.py",
        "trained = feed.open_split(index, number)",
        "trained = feed.open_split(0, number)",
        "trainer/test_feed.py::test_predictions_of_a_step_are_estimated_at_the_rate_it_trains_at",
    ),
)

BERT_JAX = make_mutants(
    "bert_jax",
    (
        *(*_TOP, *_BASELINES, *_CHECKPOINT, *_CONFIG, *_MONITORING, *_FINETUNING, *_INFERENCE),
        *(
            *_INTEROP,
            *_BENCHMARKING,
            *_MODEL,
            *_PARALLEL,
            *_PLANNING,
            *_LOGGING,
            *_RUNTIME,
            *_BUDGETS,
        ),
        *(*_LAB, *_TASKS, *_TRAIN_STEP, *_TRAINER),
    ),
)
