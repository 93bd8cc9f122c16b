//! Which tokens may come next in a text that a grammar describes, with the `llguidance` crate.

use std::panic;
use std::sync::Arc;
use std::thread;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value};
use tokenizers::Tokenizer;

use crate::error::{Code, Error, Result};
use crate::text::{TextTokenizer, TOKEN_KNOWN, TOKEN_SPECIAL};

/// Messages of the parser may repeat the whole grammar.
const LONGEST_MESSAGE: usize = 400;

/// Grammars are read recursively, as deeply as rules, terminals or references to schemas use each other:
/// a stack for the longest chain that a grammar has room for. Memory is what is used of it.
const STACK: usize = 256 << 20;

/// Of grammars that are too short for a chain that another thread's stack might not hold.
const SHORT: usize = 8 << 10;

/// What a grammar is written in; the numbers of `c_api.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    JsonSchema = 0,
    Regex = 1,
    /// A JSON list of strings.
    Choice = 2,
    Lark = 3,
}

impl TryFrom<i32> for Language {
    type Error = Error;
    fn try_from(number: i32) -> Result<Self> {
        Ok(match number {
            0 => Self::JsonSchema,
            1 => Self::Regex,
            2 => Self::Choice,
            3 => Self::Lark,
            _ => {
                let message = format!("there is no grammar language {number}");
                return Err(Error::new(Code::Internal, message));
            }
        })
    }
}

/// A vocabulary as a trie of the bytes of its tokens, and the tokenizer that forced text goes
/// through.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
    canonical: bool,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        if !self.canonical {
            return self.trie.greedy_tokenize(bytes);
        }
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            match self.tokenizer.encode_fast(text, false) {
                Ok(encoding) => encoding.get_ids().to_vec(),
                Err(_) => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}

/// Compiles grammars for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
}

impl Grammars {
    pub fn new(text: &TextTokenizer) -> Result<Self> {
        let size = text.vocab_size();
        let ends = text.eos_ids().iter().copied();
        let ends: Vec<TokenId> = ends.filter(|&id| (id as usize) < size).collect();
        let Some(&first_end) = ends.first() else {
            return Err(Error::new(
                Code::FailedPrecondition,
                "the tokenizer has no end token, so that no grammar could end a text",
            ));
        };
        let words = (0..size as i32)
            .map(|id| token_bytes(text, id))
            .collect::<Result<Vec<_>>>()?;
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, first_end), &words);
        let mut tokenizer = text.tokenizer().clone();
        // The text "<|end|>" within a string is no end token.
        tokenizer.set_encode_special_tokens(true);
        let canonical = keeps_bytes(&tokenizer, &trie);
        let vocabulary: TokEnv = Arc::new(Vocabulary {
            trie: trie.with_eos_tokens(&ends),
            tokenizer,
            canonical,
        });
        let mut factory = ParserFactory::new_simple(&vocabulary).map_err(internal)?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory })
    }

    /// A matcher at the beginning of a text. InvalidArgument: there is no such grammar.
    pub fn compile(&self, language: Language, source: &str) -> Result<GrammarMatcher> {
        if source.len() <= SHORT {
            return self.compile_here(language, source);
        }
        thread::scope(|scope| {
            thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, || self.compile_here(language, source))
                .map_err(|error| internal(format!("no thread for a grammar: {error}")))?
                .join()
                .unwrap_or_else(|panicked| panic::resume_unwind(panicked))
        })
    }

    fn compile_here(&self, language: Language, source: &str) -> Result<GrammarMatcher> {
        let grammar = match language {
            Language::JsonSchema => TopLevelGrammar::from_json_schema(schema(source)?),
            Language::Regex => TopLevelGrammar::from_regex(source),
            Language::Choice => TopLevelGrammar::from_lark(choice(&parse_json(source)?)?),
            Language::Lark => TopLevelGrammar::from_lark(source.to_string()),
        };
        let parser = self.factory.create_parser(grammar).map_err(invalid)?;
        let mut matcher = GrammarMatcher {
            matcher: Matcher::new(Ok(parser)),
            ends: 0,
        };
        match matcher.mask(&mut []) {
            Ok(()) => Ok(matcher),
            Err(_) => Err(Error::invalid(
                "no token of the vocabulary can begin such a text",
            )),
        }
    }
}

/// Where a text is in its grammar. Whatever it answers depends on the tokens consumed alone.
#[derive(Clone)]
pub struct GrammarMatcher {
    matcher: Matcher,
    /// End tokens consumed after the grammar allowed no more text, which the parser does not take.
    ends: usize,
}

impl GrammarMatcher {
    /// InvalidArgument: the grammar does not allow them; the matcher is then of no use any more.
    pub fn consume(&mut self, ids: &[i32]) -> Result<()> {
        for &id in ids {
            if !self.stopped() {
                self.matcher.consume_token(id as TokenId).map_err(invalid)?;
            } else if self.is_end(id) {
                self.ends += 1;
            } else {
                return Err(Error::invalid("the grammar allows no more text"));
            }
        }
        Ok(())
    }

    pub fn rollback(&mut self, count: usize) -> Result<()> {
        let ends = count.min(self.ends);
        self.ends -= ends;
        self.matcher.rollback(count - ends).map_err(internal)
    }

    /// How many of the tokens, one after the other, the grammar allows. Of what follows an end token
    /// none count.
    pub fn allowed(&mut self, ids: &[i32]) -> Result<usize> {
        if self.stopped() {
            return Ok(ids.first().map_or(0, |&id| usize::from(self.is_end(id))));
        }
        let known = ids.iter().take_while(|&&id| id >= 0 && self.knows(id));
        let ids: Vec<TokenId> = known.map(|&id| id as TokenId).collect();
        self.matcher.validate_tokens(&ids).map_err(internal)
    }

    fn knows(&self, id: i32) -> bool {
        let vocabulary = self.matcher.tok_env();
        vocabulary.is_ok_and(|vocabulary| (id as usize) < vocabulary.tok_trie().vocab_size())
    }

    fn is_end(&self, id: i32) -> bool {
        let vocabulary = self.matcher.tok_env();
        vocabulary.is_ok_and(|vocabulary| {
            vocabulary
                .tok_trie()
                .eos_tokens()
                .contains(&(id as TokenId))
        })
    }

    /// Bit id % 32 of word id / 32: whether the token may come next. Only end tokens may once the
    /// grammar allows no more text.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let mask = self.matcher.compute_mask_or_eos().map_err(internal)?;
        let mask = mask.as_slice();
        let common = mask.len().min(words.len());
        words[..common].copy_from_slice(&mask[..common]);
        words[common..].fill(0);
        Ok(())
    }

    /// The tokens of the text that must come next, whatever is chosen; they may be none.
    pub fn forced(&mut self) -> Vec<i32> {
        let ids = self.matcher.compute_ff_tokens();
        ids.into_iter().map(|id| id as i32).collect()
    }

    /// The grammar allows no more text.
    pub fn stopped(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// The text so far is a whole one.
    pub fn accepts(&mut self) -> bool {
        self.stopped() || self.matcher.is_accepting().unwrap_or(false)
    }
}

fn token_bytes(text: &TextTokenizer, id: i32) -> Result<Vec<u8>> {
    let flags = text.token_flags(id);
    if flags & TOKEN_KNOWN == 0 {
        return Ok(Vec::new());
    }
    let name = text.tokenizer().id_to_token(id as u32).unwrap_or_default();
    // Added tokens such as <tool_call> are marks between texts, too, whether they are shown or not.
    let is_added = text
        .tokenizer()
        .get_added_vocabulary()
        .get_added_tokens_decoder()
        .contains_key(&(id as u32));
    let is_mark = is_added && name.starts_with('<') && name.ends_with('>');
    let is_end = text.eos_ids().contains(&(id as u32));
    if flags & TOKEN_SPECIAL != 0 || is_mark || is_end {
        let mut bytes = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        bytes.extend_from_slice(name.as_bytes());
        return Ok(bytes);
    }
    text.token_bytes(id)
}

/// Whether the tokens of a text have its bytes, no space before it for example.
fn keeps_bytes(tokenizer: &Tokenizer, trie: &TokTrie) -> bool {
    ["{\"a\": [1, true]}", " b", "c", "\n", "\"é☃\""]
        .iter()
        .all(|text| match tokenizer.encode_fast(*text, false) {
            Ok(encoding) => trie.decode(encoding.get_ids()) == text.as_bytes(),
            Err(_) => false,
        })
}

fn parse_json(source: &str) -> Result<Value> {
    serde_json::from_str(source).map_err(|error| Error::invalid(format!("not JSON: {error}")))
}

/// Between the parts of a JSON text may stand a space, or a new line and what it is indented by: with
/// any white space a model can go on for ever.
const WHITE_SPACE: &str = r"[ \t]|\r?\n[ \t]{0,40}";

fn schema(source: &str) -> Result<Value> {
    let mut schema = parse_json(source)?;
    if let Some(object) = schema.as_object_mut() {
        let options = object.entry("x-guidance").or_insert_with(|| json!({}));
        if let Some(options) = options.as_object_mut() {
            options
                .entry("whitespace_pattern")
                .or_insert(json!(WHITE_SPACE));
        }
    }
    Ok(schema)
}

/// A grammar of the strings in a list.
fn choice(list: &Value) -> Result<String> {
    let strings = list.as_array().filter(|strings| !strings.is_empty());
    let strings = strings.ok_or_else(|| Error::invalid("must be a list of at least one string"))?;
    let mut quoted = Vec::with_capacity(strings.len());
    for string in strings {
        let Some(string) = string.as_str().filter(|string| !string.is_empty()) else {
            return Err(Error::invalid("must hold strings that are not empty"));
        };
        quoted.push(Value::from(string).to_string());
    }
    Ok(format!("start: {}", quoted.join(" | ")))
}

/// One line, of bounded length.
fn line(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let text = text.replace("\n<non-verbose/>", "");
    let words: Vec<&str> = text.split_whitespace().collect();
    let line: String = words.join(" ");
    match line.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::invalid(line(error))
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, line(error))
}
