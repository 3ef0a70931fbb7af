"""Chat templates like those of known model families, and small tokenizers with their special tokens."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN2 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}" + CHATML
)  # adds a default system message
SMOLLM2 = QWEN2.replace("You are helpful.", "You are a helpful AI assistant named SmolLM.")
QWEN3 = """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role != 'assistant' %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}
{%- set content = m.content %}{%- set thought = '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last %}
{{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
MISTRAL_LAST = (  # the system message precedes the last question
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] "
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }} [/INST]{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content + eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A chat template, its end token, and properties of its tokenizer."""

    template: str
    stop: str
    special: tuple[str, ...] = ()
    system: bool = True
    keeps_history: bool = True
    stripping: bool = False  # special tokens absorb white space after them
    words: bool = False  # tokens begin with a space, also the first token of a text


FAMILIES = {
    "chatml": Family(CHATML, "<|im_end|>", ("<|im_start|>",)),
    "qwen2": Family(QWEN2, "<|im_end|>", ("<|im_start|>",)),
    "smollm2": Family(SMOLLM2, "<|im_end|>", ("<|im_start|>",)),
    "qwen3": Family(QWEN3, "<|im_end|>", ("<|im_start|>",), keeps_history=False),
    "llama3": Family(LLAMA3, "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>")),
    "gemma": Family(GEMMA, "<end_of_turn>", ("<start_of_turn>",), system=False),
    "gemma of words": Family(GEMMA, "<end_of_turn>", ("<start_of_turn>",), system=False, words=True),
    "mistral": Family(MISTRAL, "</s>", ("[INST]", "[/INST]"), system=False),
    "mistral of words": Family(MISTRAL, "</s>", (), system=False, words=True),
    "mistral last": Family(MISTRAL_LAST, "</s>", (), keeps_history=False),
    "phi3": Family(PHI3, "<|end|>", ("<|user|>", "<|assistant|>", "<|system|>"), stripping=True),
    "zephyr": Family(ZEPHYR, "</s>", words=True),
}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, or a character tokenizer with a mark for spaces; adds `<s>` before plain text."""
    if family.words:
        vocabulary = ["<unk>", "\u2581", "\n", *map(chr, range(33, 127))]
        made = Tokenizer(models.BPE({piece: at for at, piece in enumerate(vocabulary)}, [], unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore
        made.decoder = decoders.Metaspace(prepend_scheme="first")  # pyright: ignore
    else:
        made = Tokenizer(models.BPE({piece: at for at, piece in enumerate(ALPHABET)}, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore
        made.decoder = decoders.ByteLevel()  # pyright: ignore
    made.add_special_tokens(
        [
            AddedToken(name, special=True, normalized=False, rstrip=family.stripping)
            for name in dict.fromkeys(["<s>", family.stop, *family.special])
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token=family.stop, extra_special_tokens=list(family.special)
    )
    tokenizer.chat_template = family.template
    return tokenizer
