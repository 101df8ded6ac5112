"""Planted edits of data_pipeline: kind, file, text, what it becomes, tests that notice it."""

from tests.mutants.mutant import RULE, WIRING, make_mutants

_TOP = (
    (
        WIRING,
        "build.py",
        "choose_heldout(hashes, flags.holdout, ",
        "choose_heldout(hashes, 0.05, ",
        "test_build.py::test_the_store_holds_what_plain_python_makes_of_the_text",
    ),
    (
        WIRING,
        "build.py",
        "selection.side_hashes[selection.keeps_document]",
        "selection.side_hashes",
        "test_build.py::test_copies_that_are_dropped_do_not_count_where_a_split_is_filled_up",
    ),
    (
        WIRING,
        "export_tfrecord.py",
        "split = getattr(store, flags.split)",
        "split = store.train",
        "test_export_tfrecord.py::test_the_default_is_a_pass_for_each_walk_of_the_split",
    ),
    (
        WIRING,
        "export_tfrecord.py",
        "np.arange(start, stop, flags.shards, dtype=np.int64)",
        "np.arange(start, stop, dtype=np.int64)",
        "test_export_tfrecord.py"
        "::test_every_record_parses_as_google_reads_it_to_the_row_of_its_position",
    ),
)
_CLI = (
    (
        RULE,
        "cli/flags.py",
        'ends = arguments.index("--") if "--" in arguments else len(arguments)',
        "ends = len(arguments)",
        "cli/test_flags.py::test_values_are_read",
    ),
    (
        RULE,
        "cli/main.py",
        'place = f"{error.filename}: " if error.filename else ""',
        'place = ""',
        "cli/test_main.py::test_work_ends_with_a_code_and_at_most_a_line",
    ),
)
_CORPUS = (
    (
        WIRING,
        "corpus/encode.py",
        "text_hashes=hash_texts(documents,",
        "text_hashes=hash_texts(lines[: len(documents)],",
        "corpus/test_selection.py::test_the_first_of_equal_documents_and_lines_stays",
    ),
    (
        WIRING,
        "corpus/selection.py",
        "selection.side_hashes[later] = selection.side_hashes[first_D[later]]",
        "selection.side_hashes[later] = selection.side_hashes[later]",
        "corpus/test_selection.py"
        "::test_near_duplicates_go_to_one_side_and_stay_there_when_the_corpus_grows",
    ),
    (
        WIRING,
        "corpus/selection.py",
        "for writer, side in ((train, False), (heldout, True)):",
        "for writer, side in ((train, True), (heldout, False)):",
        "test_build.py::test_the_store_holds_what_plain_python_makes_of_the_text",
    ),
    (
        RULE,
        "corpus/selection.py",
        "most = len(hashes) // 2",
        "most = len(hashes)",
        "corpus/test_selection.py"
        "::test_two_documents_if_they_can_be_and_at_most_half_with_copies_together",
    ),
)
_IO = (
    (
        RULE,
        "io/record_frames.py",
        "byte += HEAD_BYTES + length + FOOT_BYTES",
        "byte += HEAD_BYTES + length",
        "io/test_record_frames.py::test_few_bytes_that_unpack_to_gigabytes_are_not_held",
    ),
    (
        RULE,
        "io/jsonl.py",
        'if line["step"] <= last_step]',
        'if line["step"] < last_step]',
        "io/test_jsonl.py::test_lines_are_kept_up_to_a_step_and_with_it",
    ),
    (
        RULE,
        "io/jsonl.py",
        'if small_files.field(content, "step", int, name) < 0:',
        'if small_files.field(content, "step", int, name) < -1:',
        "io/test_jsonl.py::test_anything_else_is_one_sentence",
    ),
)
_LABELED = (
    (
        WIRING,
        "labeled/rows.py",
        "derive_key(self._seed, Purpose.LABELED_ORDER, epoch)",
        "derive_key(self._seed, Purpose.LABELED_ORDER, 0)",
        "labeled/test_rows.py::test_an_epoch_has_every_example_once_and_the_next_another_order",
    ),
    (
        WIRING,
        "labeled/rows.py",
        "index_B[rows_of_process], self._choose_seq_len(index_B)",
        "index_B[rows_of_process], self._choose_seq_len(index_B[rows_of_process])",
        "labeled/test_rows.py::test_any_step_can_be_made_again_and_processes_share_a_batch",
    ),
    (
        WIRING,
        "labeled/packing.py",
        "fill_slots(array[index_B]) for name",
        "fill_slots(array[: len(index_B)]) for name",
        "labeled/test_packing.py::test_a_batch_gives_back_its_examples",
    ),
    (
        RULE,
        "labeled/windows.py",
        "start = spans[-1][0] + min(most, stride)",
        "start = spans[-1][0] + most",
        "tests/bert_jax/tasks/squad/test_windows.py::test_an_answer_outside_of_a_window_is_at_cls",
    ),
)
_READ = (
    (
        RULE,
        "read/cleaning.py",
        "sum(map(len, d)) >= options.min_document_chars",
        "sum(map(len, d)) > options.min_document_chars",
        "read/test_cleaning.py::test_lines_with_long_words_go_before_documents_are_measured",
    ),
    (
        WIRING,
        "read/cleaning.py",
        "options.max_word_chars + 1",
        "options.max_word_chars",
        "read/test_cleaning.py::test_lines_with_long_words_go_before_documents_are_measured",
    ),
    (
        WIRING,
        "read/documents.py",
        "share_chars = limit_chars // max(1, len(sources))",
        "share_chars = limit_chars",
        "vocab/test_train.py::test_every_file_gives_an_equal_share_of_the_text",
    ),
)
_REPORT = (
    (
        WIRING,
        "report/vocabularies.py",
        "vocabulary.encode_words([*words])",
        "vocabulary.encode([*words])",
        "report/test_vocabularies.py::test_columns_are_the_counts_of_the_libraries",
    ),
    (
        WIRING,
        "report/build.py",
        "columns = (splits[TRAIN], splits[HELDOUT], both)",
        "columns = (splits[TRAIN], both, splits[HELDOUT])",
        "test_build.py::test_the_report_shows_counts_findings_and_the_next_command",
    ),
    (
        RULE,
        "report/build.py",
        "for limit, config in _CONFIGS if tokens < limit",
        "for limit, config in _CONFIGS if tokens > limit",
        "test_build.py::test_the_next_command_has_the_config_for_so_much_text",
    ),
)
_SAMPLING = (
    (
        WIRING,
        "sampling/mixture.py",
        "last.first_K + last.schedule",
        "last.schedule",
        "sampling/test_mixture.py::test_a_mixture_has_the_rows_of_each_store_in_its_own_order",
    ),
    (
        WIRING,
        "sampling/mixture.py",
        "count(start - last.start)",
        "count(start)",
        "sampling/test_mixture.py::test_a_mixture_has_the_rows_of_each_store_in_its_own_order",
    ),
    (
        WIRING,
        "sampling/stream.py",
        "Purpose.EPOCH, seq_len, epoch)",
        "Purpose.EPOCH, seq_len, number)",
        "sampling/test_stream.py"
        "::test_an_epoch_with_the_same_walk_has_the_same_pairs_and_other_masks_and_order",
    ),
    (
        WIRING,
        "sampling/stream.py",
        "hashing.permute(order_key, index_B, planned.rows)",
        "index_B",
        "sampling/test_stream.py"
        "::test_an_epoch_with_the_same_walk_has_the_same_pairs_and_other_masks_and_order",
    ),
    (
        WIRING,
        "sampling/walks.py",
        '        "short_seq_prob": options.short_seq_prob,\n',
        "",
        "sampling/test_walks.py"
        "::test_everything_that_the_counts_depend_on_has_a_sidecar_of_its_own",
    ),
    (
        WIRING,
        "sampling/walks.py",
        "dataclasses.replace(rules, random_share=share, key=key)",
        "dataclasses.replace(rules, random_share=0.5, key=key)",
        "sampling/test_walks.py::test_half_of_the_pairs_are_random_where_the_corpus_allows",
    ),
    (
        WIRING,
        "sampling/batches.py",
        "first_row + batch_size *",
        "first_row + len(rows_B) *",
        "sampling/test_batches.py::test_the_shares_of_all_processes_make_the_batch_of_one",
    ),
    (
        RULE,
        "sampling/pairs.py",
        "other_N += other_N >= document_N",
        "other_N += other_N > document_N",
        "sampling/test_pairs.py::test_exact_takes_the_same_document_after_ten_failed_draws",
    ),
    (
        RULE,
        "sampling/masking.py",
        "np.rint(length_B * rules.masked_lm_prob)",
        "np.floor(length_B * rules.masked_lm_prob)",
        "sampling/test_masking.py::test_token_masks_are_the_same_at_every_release",
    ),
    (
        WIRING,
        "sampling/stream.py",
        "self.shape.seq_len, part\n",
        "self.shape.seq_len, 0\n",
        "sampling/test_ready_made.py::test_every_epoch_has_each_example_once_in_another_order",
    ),
)
_SPEC = (
    (
        RULE,
        "spec/hashing.py",
        "np.clip(64 - counted, 0, 63)",
        "np.clip(63 - counted, 0, 63)",
        "spec/test_hashing.py::test_binomial_half_has_the_binomial_distribution",
    ),
    (
        RULE,
        "spec/fields.py",
        "self.maximum is None or value <= self.maximum",
        "self.maximum is None or value < self.maximum",
        "spec/test_fields.py::test_a_range_includes_the_ends_that_it_names",
    ),
)
_STORE = (
    (
        WIRING,
        "store/writer.py",
        "sentences + np.cumsum(document_lengths)",
        "np.cumsum(document_lengths)",
        "store/test_reader.py::test_offsets_go_on_from_call_to_call",
    ),
    (
        WIRING,
        "store/reader.py",
        '[*lines, f"vocabulary {vocabulary_sha256}\\n"]',
        "lines",
        "store/test_reader.py::test_the_digest_follows_every_array_and_the_vocabulary",
    ),
    (
        WIRING,
        "store/cache.py",
        "if actual != checksums[name]:",
        "if not actual:",
        "store/test_cache.py::test_what_cannot_be_copied_is_refused_and_leaves_nothing",
    ),
    (
        RULE,
        "store/reader.py",
        "    if largest >= vocab_size:",
        "    if largest > vocab_size:",
        "store/test_reader.py::test_ids_beyond_the_vocabulary_are_found",
    ),
)
_VOCAB = (
    (
        RULE,
        "vocab/offsets.py",
        "starts += [offset + start for start in word_starts]",
        "starts += [offset for start in word_starts]",
        "vocab/test_offsets.py::test_wordpieces_stand_for_these_characters",
    ),
    (
        WIRING,
        "vocab/offsets.py",
        "_with_accents(word, *self._encode(word))",
        "_with_accents(word, *self._encode(word.lower()))",
        "vocab/test_offsets.py::test_a_cased_list_keeps_its_capitals",
    ),
)

DATA_PIPELINE = make_mutants(
    "data_pipeline",
    (
        *(*_TOP, *_CLI, *_CORPUS, *_IO, *_LABELED, *_READ),
        *(*_REPORT, *_SAMPLING, *_SPEC, *_STORE, *_VOCAB),
    ),
)
