"""Writes tests/tokenizer/fixtures: small checkpoints and what the Hugging Face libraries make of
them.

Needs the Python packages tokenizers, transformers and jinja2. The result is committed. Training
breaks ties differently in each run, so run this only to change the fixtures:

    python tests/tokenizer/make_fixtures.py
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

FIXTURES = Path(__file__).parent / "fixtures"

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "She said that they'd rather wait; he said that he'd rather not.",
    "def add(left, right):\n    return left + right\n\nprint(add(1, 23))\n",
    "Die Größe der Änderung überraschte die Übersetzer.",
    "你好，世界。今天天气很好，我们去公园。",
    "こんにちは世界。今日はいい天気です。",
    "Привет, мир! Как дела сегодня?",
    "😀😀 🎉🎉 the party is over 🎉",
]

TEXTS = [
    "",
    " ",
    "Hello, world!",
    " leading and trailing ",
    "   three   spaces   inside   ",
    "tabs\tand\nnewlines\n\n  \n end\r\n",
    "I'm, WE'LL, they'd, it'S, \u017f'\u017f",
    "x = 1234567890 + 3.14e-10;",
    "def add(left, right):\n        return left",
    "Die Größe überraschte: ß, ẞ, e\u0301, \ufb01",
    "你好，世界。 天气 ok 很好",
    "こんにちは ｶﾞ １２３",
    "עברית العربية ٣٤٥ हिन्दी ไทย",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀 \U0001f1fa\U0001f1f3",
    "a\u00a0b\u2003c\u200bd\u3000e\ufeff",
    "\x00\x01\x1f\x7f\x80\x9f",
    "\ufffd and \U0010ffff",
    "<s>spelled</s> out <|tool|>, <|end|> <|begin|>done",
    "▁already▁marked <0x41> Ġx",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]

# In the manner of the splitters that current models use.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Extra = dict[str, Any]


def special(content: str) -> AddedToken:
    return AddedToken(content, special=True, normalized=False)


def byte_level_split() -> tuple[Tokenizer, Extra]:
    """Byte-level BPE behind a regular expression, with tokens around the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([special("<|begin|>"), special("<|end|>")])
    tokenizer.add_tokens([AddedToken("<|tool|>", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
    )
    # Saved limits must not cut what is served.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    end, tool = tokenizer.token_to_id("<|end|>"), tokenizer.token_to_id("<|tool|>")
    return tokenizer, {
        "tokenizer_config.json": {
            "bos_token": "<|begin|>",
            "eos_token": "<|end|>",
            "chat_template": [
                {"name": "default", "template": CHAT_TURNS},
                {"name": "tool_use", "template": CHAT_TOOLS},
            ],
        },
        "generation_config.json": {"eos_token_id": [tool, end]},
        "config.json": {"eos_token_id": 0, "bos_token_id": 0},
    }


def byte_level_words() -> tuple[Tokenizer, Extra]:
    """Byte-level BPE with its built-in splitter; no beginning-of-sequence token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer, {
        "tokenizer_config.json": {
            "bos_token": None,
            "eos_token": {"__type": "AddedToken", "content": "<|end|>", "special": True},
            "chat_template": "{{ raise_exception('the file has to win') }}",
        },
        "chat_template.jinja": CHAT_PYTHON,
        "config.json": {"eos_token_id": 0, "bos_token_id": 0},
    }


def fallback_model() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)],
        limit_alphabet=50,
        show_progress=False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Byte tokens belong to the model, not to the special tokens that the trainer makes of them.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = None
    return tokenizer


def byte_fallback_prefix() -> tuple[Tokenizer, Extra]:
    """SentencePiece BPE: a space before the text, bytes for unknown characters."""
    tokenizer = fallback_model()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer, {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "special_tokens_map.json": {
            "bos_token": {"content": "<s>", "special": True},
            "eos_token": "</s>",
            "unk_token": "<unk>",
        },
    }


def byte_fallback_bare() -> tuple[Tokenizer, Extra]:
    """The same without a space before the text."""
    tokenizer = fallback_model()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer, {
        "config.json": {"text_config": {"eos_token_id": [2], "bos_token_id": 1}},
    }


def metaspace() -> tuple[Tokenizer, Extra]:
    """Unigram with the Metaspace pair of pre-tokenizer and decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=160,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer, {
        "tokenizer_config.json": {"eos_token": "</s>", "unk_token": "<unk>"},
        "generation_config.json": {"eos_token_id": 2},
    }


def word_piece() -> tuple[Tokenizer, Extra]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.WordPieceTrainer(
        vocab_size=220, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer, {"tokenizer_config.json": {"eos_token": "[SEP]", "unk_token": "[UNK]"}}


def plain_words() -> tuple[Tokenizer, Extra]:
    """Words and no decoder: ids are joined with spaces."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=80, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer, {}


def word_ends() -> tuple[Tokenizer, Extra]:
    """BPE whose tokens carry the end of a word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=260,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer, {}


def whole_text() -> tuple[Tokenizer, Extra]:
    """A decoder that rewrites the joined text, so that nothing is settled before the end."""
    tokenizer, extra = word_piece()
    tokenizer.decoder = decoders.Sequence(
        [decoders.WordPiece(prefix="##"), decoders.Fuse(), decoders.Replace(" the", " THE")]
    )
    return tokenizer, extra


CHAT_TURNS = """\
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] %}
    {% set rest = messages[1:] %}
{% else %}
    {% set system = 'Be brief.' %}
    {% set rest = messages %}
{% endif %}
{{ bos_token }}[system]{{ system | trim }}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate: user, assistant, user, ...') }}
    {% endif %}
    {% if message['role'] == 'assistant' %}
        {% generation %}
[assistant]{{ message['content'] }}{{ eos_token }}
        {% endgeneration %}
    {% else %}
[{{ message['role'] }}]{{ message['content'].strip() }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
[assistant]{% endif %}
"""

CHAT_TOOLS = """\
{%- macro describe(function) -%}
{{ function.name }}({% for name, kind in function.parameters.properties.items() -%}
{{ name }}: {{ kind.get('type', 'any') }}{% if not loop.last %}, {% endif %}{%- endfor %})
{%- endmacro -%}
{%- set ns = namespace(count=0, last=none) -%}
{{- bos_token -}}
# Tools
{% for tool in tools %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}
{{ describe(tool.function) }}
{% set ns.count = ns.count + 1 %}
{% endfor %}
{{ ns.count }} tools, strict: {{ tools[0].strict }}, none: {{ ns.last }}
{% for message in messages %}
{% if message.tool_calls is defined and message.tool_calls is not none %}
{% for call in message.tool_calls %}
<call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</call>
{% endfor %}
{% elif message.content is string %}
{{ message.role }}: {{ message.content }}
{% elif message.content is iterable %}
{{ message.role }}: {% for part in message.content if part.type == 'text' %}{{ part.text }}
{%- endfor +%}
{% endif %}
{% endfor %}
{{ tools | map(attribute='function') | map(attribute='name') | join(', ') }}
"""

CHAT_PYTHON = """\
{#- Methods and literals as Python has them -#}
{%- set thinking = enable_thinking if enable_thinking is defined else true %}
{%- for message in messages[::-1] %}
    {%- if loop.index > 8 %}{% break %}{% endif %}
    {%- set content = message.content if message.content is not none else '' %}
    {%- if '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if message.thinking or message.reasoning_content %}
        {{- message.thinking ~ '|' ~ message.reasoning_content ~ '|' ~ message.reasoning }}
    {%- endif %}
    {{- '<' ~ message.role ~ '>' + content.rstrip() + '\\n' }}
    {%- if message.name is defined and message.name.startswith('a') %}
        {{- message.name.upper() ~ message.name.title() ~ message.name.replace('a', 'b') }}
    {%- endif %}
{%- endfor %}
{{ [1, 2.5, true, none, 'x\\'y'] }} {{ {'k': ['v']} }} {{ thinking }} {{ none }}
{{ {'b': 1e20, 'a': [0.00001, 1.0, 'é<&>', []], 'c': {}} | tojson(sort_keys=true) }}
{{ messages | length }} {{ messages | map(attribute='role') | unique | list | length }}
{{ {'x': 'é😀'} | tojson(ensure_ascii=true) }} {{ [1, [2]] | tojson(separators=(',', ':')) }}
{{ "%s and %d" | format("a", 3) }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ 'a' * 3 }}
{{ documents is none }} {{ tools is none }} {{ missing is defined }} {{ missing }}
{{ none is iterable }} {{ missing is iterable }} {{ 'x' is iterable }} {{ 7 is iterable }}
{{ missing | length }} {{ 'é' | length }} {{ 0.00001 }} {{ 0.00001 | string }} {{ 7 | string }}
{%- if add_generation_prompt %}
    {{- '\\n<assistant>' }}
    {%- if not thinking %}{{ '<think>\\n\\n</think>' }}{% endif %}
{%- endif %}
"""

CHECKPOINTS = [
    byte_level_split,
    byte_level_words,
    byte_fallback_prefix,
    byte_fallback_bare,
    metaspace,
    word_piece,
    plain_words,
    word_ends,
    whole_text,
]

TOOLS = [
    {
        "type": "function",
        "strict": True,
        "function": {
            "name": "weather",
            "description": 'The weather in <a place> & "more", e.g. Zürich',
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"enum": [1, 2.5, None]}},
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {"properties": {}}}},
]


def user(content: Any) -> Extra:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> Extra:
    return {"role": "assistant", "content": content, **more}


CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [user("Hello")]},
    {"messages": [user("  Hi\n"), assistant(" yes\n"), user("why? <b>&</b> 'q'")]},
    {"messages": [{"role": "system", "content": " Rhyme. "}, user("日本 😀")], "prompt": True},
    {"messages": [user("a"), user("b")]},
    {
        "messages": [
            user("a"),
            assistant("<think>\nhm\n</think>\n\nanswer  \n", name="anna a"),
            user("b"),
        ],
        "prompt": True,
        "variables": {"enable_thinking": False},
    },
    {"messages": [user("a"), assistant("b", reasoning="because"), assistant("c", name=None)]},
    {"messages": [user("a"), assistant("b", thinking="t", reasoning_content="r")]},
    {"messages": []},
    {
        "messages": [
            user("weather?"),
            assistant(
                None,
                tool_calls=[{"function": {"name": "weather", "arguments": {"place": "Köln"}}}],
            ),
            {"role": "tool", "content": "rain"},
        ],
        "tools": TOOLS,
        "prompt": True,
    },
    {
        "messages": [user([{"type": "text", "text": "one"}, {"type": "image"}])],
        "tools": TOOLS,
    },
]


def with_content(message: dict[str, Any]) -> dict[str, Any]:
    """An assistant's message without content has empty text, as in other servers of this API."""
    if message["role"] == "assistant" and message.get("content") is None:
        return {**message, "content": ""}
    return message


def golden_chats(folder: Path) -> list[dict[str, Any]]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    chats = []
    for chat in CONVERSATIONS:
        result: dict[str, Any] = {"input": chat}
        try:
            result["text"] = tokenizer.apply_chat_template(
                [with_content(message) for message in chat["messages"]],
                tools=chat.get("tools"),
                add_generation_prompt=chat.get("prompt", False),
                tokenize=False,
                **chat.get("variables", {}),
            )
        except Exception as error:  # whatever the template engine raises is the golden answer
            result["error"] = str(error)
        chats.append(result)
    return chats


def golden(tokenizer: Tokenizer, rng: random.Random) -> dict[str, Any]:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encodings = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        with_special = tokenizer.encode(text, add_special_tokens=True).ids
        encodings.append(
            {
                "text": text,
                "ids": ids,
                "ids_with_special": with_special,
                "decoded": tokenizer.decode(with_special, skip_special_tokens=True),
                "decoded_with_special": tokenizer.decode(with_special, skip_special_tokens=False),
            }
        )
    decodings = []
    size = max(tokenizer.get_vocab().values()) + 1
    for length in list(range(1, 13)) * 2:
        # A few ids beyond the vocabulary, as padded models produce them.
        ids = [rng.randrange(size + 3) for _ in range(length)]
        decodings.append({"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)})
    return {"encodings": encodings, "decodings": decodings}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


def main() -> None:
    shutil.rmtree(FIXTURES, ignore_errors=True)
    rng = random.Random(7)
    for make in CHECKPOINTS:
        tokenizer, extra = make()
        folder = FIXTURES / make.__name__
        folder.mkdir(parents=True)
        write_json(folder / "tokenizer.json", json.loads(tokenizer.to_str()))
        for name, content in extra.items():
            if isinstance(content, str):
                (folder / name).write_text(content, "utf-8")
            else:
                write_json(folder / name, content)
        result = golden(tokenizer, rng)
        if "chat_template" in extra.get("tokenizer_config.json", {}):
            result["chats"] = golden_chats(folder)
        write_json(folder / "golden.json", result)


if __name__ == "__main__":
    main()
