#!/bin/bash
# Trains the next built-in model from the present one and its teacher, and measures both.
#
#   examples/train_builtin.sh DATA_DIR OUTPUT_DIR
#
# DATA_DIR holds the files that docs/TRAINING.md names. A run that was cut off goes on where it was.
# Nothing in models/ is changed: what is good enough is copied there by hand, as the end says.
set -euo pipefail
cd "$(dirname "$0")/.."
data=$(realpath "$1") out=$(realpath -m "$2")
mkdir -p "$out"
python=${PYTHON:-python}

# The teacher reads the sentence that holds the answer, alone; the student gets it among others.
# Of whole paragraphs, half of what is learned is the teacher's and half is people's.
teacher=(--base sentence-transformers/all-mpnet-base-v2 --init models/builtin-base)
$python -m training.finetune_model "${teacher[@]}" \
    --label_sentences "$data/unlabelled_squad_sentences.json.gz" "$out/labels.npz"
for file in train_squad train_nq; do
    $python -m training.finetune_model "${teacher[@]}" --label "$data/$file.json.gz" "$out/labels.npz"
done

# Passages of documents, as many for a question as a server reads, which compete; whole sections; and
# passages that lack the answer. Of trees that are not in docs_train the questions are left out.
$python -m training.documents "$data/docs_train" --questions training/questions/*.jsonl \
    --work "$out/work" --output "$out/docs.json.gz" --sections "$out/sections.json.gz" \
    --unanswered "$out/none.json.gz" --passages "$out/passages.json.gz"
$python -m training.finetune_model "${teacher[@]}" --label "$out/passages.json.gz" "$out/labels.npz"

# Tables: questions of DATA_DIR/tables, if there are any, those that a program asks of the trees'
# tables, and tables and pages that offices keep. They need no teacher: the cell is known.
tables=()
$python -m training.table_questions "$data/docs_train" --work "$out/work" --output "$out/made.jsonl"
for questions in "$out/made.jsonl" "$data"/tables/*.jsonl; do
    [ -e "$questions" ] || continue
    name=$(basename "$questions" .jsonl)
    $python -m training.documents "$data/docs_train" --only --questions "$questions" --work "$out/work" \
        --output "$out/$name.json.gz" --unanswered "$out/${name}_none.json.gz" \
        --passages "$out/${name}_passages.json.gz"
    tables+=("$out/${name}_passages.json.gz=${TABLES:-1500}")
done
for kind in tables pages; do
    $python -m "training.office_$kind" --count "${TABLES:-1500}" --output "$out/office_$kind.json.gz"
    tables+=("$out/office_$kind.json.gz")
done

# Students that differ make a better average: one of them sees rare words put for others.
for seed in 1 2; do
    swapped=0
    if ((seed == 1)); then swapped=0.25; fi
    $python -m training.finetune_model --init models/builtin --unanswerable_share 0.1 --seed $seed \
        --swap_words $swapped --labels "$out/labels.npz" \
        --train_sentences "$data/unlabelled_squad_sentences.json.gz=${LABELLED:-12000}" \
        "$data/train_qamr.json.gz=${QAMR:-3000}" \
        --train "$data/train_squad.json.gz=${SQUAD:-6000}" "$data/train_nq.json.gz=${NQ:-3000}" \
        "$out/sections.json.gz=${SECTIONS:-6000}" \
        --train_passages "$out/passages.json.gz=${PASSAGES:-6000}" "${tables[@]}" --max_tokens 320 \
        --dev "$data/dev.json" --output_dir "$out/student$seed"
done

# The average of students with where they began has been better than each student, every time.
first=$out/student1 second=$out/student2
$python -m training.finetune_model --average models/builtin "$first" "$first" "$second" "$second" \
    --dev "$data/dev.json" --output_dir "$out/next"

cp models/builtin/reading.json "$out/next/"
$python prepare_model.py --model "$out/next" --output_dir "$out/prepared" --precision fp32
$python evaluate_model.py "$out/prepared/next" --dev "$data/dev.json" --inference_engine_types onnx \
    --max_cost_f1 2.1 --calibrate "$out/next/reading.json"
for model in builtin "$out/next"; do
    $python prepare_model.py --model "$model" --output_dir "$out/prepared"
done
$python evaluate_model.py "$out/prepared/builtin" "$out/prepared/next" --dev "$data/dev.json" \
    --inference_engine_types onnx openvino --by_kind

echo "to ship it, copy adapter_config.json, adapter_model.safetensors and reading.json"
echo "from $out/next to models/builtin"
