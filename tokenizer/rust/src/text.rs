//! Converts text to token ids and back, with the `tokenizers` crate.

use std::path::Path;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::Tokenizer;

use crate::chat_template::ChatTemplate;
use crate::checkpoint;
use crate::error::{Code, Error, Result};

/// Larger ids are refused at load: tables are indexed by id.
const MAX_VOCAB_SIZE: usize = 1 << 24;

pub const TOKEN_KNOWN: u8 = 1;
pub const TOKEN_SPECIAL: u8 = 2;
pub const TOKEN_BYTE: u8 = 4;

/// How the text of a prefix of ids relates to the text of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderKind {
    /// Each token adds its own text; only the first and the last may differ from the rest.
    PerToken = 0,
    /// Tokens are bytes; their concatenation is read as UTF-8.
    ByteLevel = 1,
    /// Like PerToken, except that runs of "<0xNN>" tokens are read as UTF-8, each run as a whole.
    ByteFallback = 2,
    /// Anything else: only the whole sequence of ids has a text.
    Whole = 3,
}

pub struct TextTokenizer {
    tokenizer: Tokenizer,
    flags: Vec<u8>,
    decoder_kind: DecoderKind,
    bos_id: Option<u32>,
    eos_ids: Vec<u32>,
    chat_template: ChatTemplate,
}

impl TextTokenizer {
    pub fn load(dir: &Path) -> Result<Self> {
        let checkpoint = checkpoint::read(dir)?;
        let mut tokenizer = Tokenizer::from_bytes(&checkpoint.tokenizer_json).map_err(|error| {
            Error::invalid(format!("{}: {error}", dir.join("tokenizer.json").display()))
        })?;
        // A truncation limit saved in the file would silently cut prompts.
        tokenizer.with_truncation(None).map_err(Error::invalid)?;
        tokenizer.with_padding(None);

        let decoder_kind = decoder_kind(tokenizer.get_decoder());
        let flags = token_flags(&tokenizer, decoder_kind)?;
        let token_id = |key| {
            let token = checkpoint.special_tokens.get(key);
            token.and_then(|token: &String| tokenizer.token_to_id(token))
        };
        let bos_id = token_id("bos_token").or(checkpoint.bos_id);
        let mut eos_ids = checkpoint.eos_ids;
        eos_ids.extend(token_id("eos_token"));
        eos_ids.sort_unstable();
        eos_ids.dedup();
        if let Some(id) = eos_ids
            .iter()
            .chain(&bos_id)
            .find(|id| **id > i32::MAX as u32)
        {
            return Err(Error::invalid(format!(
                "token id {id} is out of range; allowed are 0 to {}",
                i32::MAX
            )));
        }
        Ok(Self {
            tokenizer,
            flags,
            decoder_kind,
            bos_id,
            eos_ids,
            chat_template: ChatTemplate::new(&checkpoint.chat_templates, checkpoint.special_tokens),
        })
    }

    pub fn encode(&self, text: &[u8], add_special_tokens: bool) -> Result<Vec<i32>> {
        let text = utf8("text", text)?;
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|error| Error::invalid(format!("cannot encode the text: {error}")))?;
        // load() has checked that every id of the vocabulary fits.
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    /// Ids that are not in the vocabulary have no text.
    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String> {
        let ids = ids
            .iter()
            .map(|&id| {
                u32::try_from(id).map_err(|_| {
                    Error::invalid(format!("token id {id} is negative; ids start at 0"))
                })
            })
            .collect::<Result<Vec<u32>>>()?;
        self.decode_ids(&ids, skip_special_tokens)
    }

    /// The bytes that a token adds to a text when it is not the first one.
    pub fn token_bytes(&self, id: i32) -> Result<Vec<u8>> {
        let flags = self.token_flags(id);
        if flags & TOKEN_KNOWN == 0 {
            return Ok(Vec::new());
        }
        let id = id as u32;
        if flags & TOKEN_BYTE != 0 || self.decoder_kind == DecoderKind::ByteLevel {
            let token = self.tokenizer.id_to_token(id).unwrap_or_default();
            if self.decoder_kind == DecoderKind::ByteLevel {
                return Ok(byte_level_bytes(&token));
            }
            return Ok(fallback_byte(&token).into_iter().collect());
        }
        // Decoders may strip the first token, so the same token is put before it.
        let once = self.decode_ids(&[id], false)?;
        let twice = self.decode_ids(&[id, id], false)?;
        Ok(match twice.strip_prefix(once.as_str()) {
            Some(added) => added.as_bytes().to_vec(),
            None => once.into_bytes(),
        })
    }

    pub fn token_flags(&self, id: i32) -> u8 {
        usize::try_from(id)
            .ok()
            .and_then(|id| self.flags.get(id))
            .copied()
            .unwrap_or(0)
    }

    pub fn decoder_kind(&self) -> DecoderKind {
        self.decoder_kind
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.flags.len()
    }

    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The underlying tokenizer, for encoders with other settings.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn chat_template(&self) -> &ChatTemplate {
        &self.chat_template
    }

    fn decode_ids(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.tokenizer
            .decode(ids, skip_special_tokens)
            .map_err(|error| {
                Error::new(
                    Code::Internal,
                    format!("cannot decode {} token ids: {error}", ids.len()),
                )
            })
    }
}

/// `bytes` as text, or an error that gives the position of the first invalid byte.
pub fn utf8<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| {
        Error::invalid(format!(
            "{what}: not valid UTF-8 at byte {}",
            error.valid_up_to()
        ))
    })
}

fn token_flags(tokenizer: &Tokenizer, decoder_kind: DecoderKind) -> Result<Vec<u8>> {
    let highest = tokenizer.get_vocab(true).into_values().max();
    let vocab_size = highest.map_or(0, |id| id as usize + 1);
    if vocab_size > MAX_VOCAB_SIZE {
        return Err(Error::invalid(format!(
            "tokenizer.json: token id {} is out of range; allowed are 0 to {}",
            vocab_size - 1,
            MAX_VOCAB_SIZE - 1
        )));
    }
    let added = tokenizer.get_added_vocabulary();
    let flags = (0..vocab_size as u32).map(|id| match tokenizer.id_to_token(id) {
        None => 0,
        Some(token) => {
            let mut flags = TOKEN_KNOWN;
            if added.is_special_token(&token) {
                flags |= TOKEN_SPECIAL;
            }
            if decoder_kind == DecoderKind::ByteFallback && fallback_byte(&token).is_some() {
                flags |= TOKEN_BYTE;
            }
            flags
        }
    });
    Ok(flags.collect())
}

fn decoder_kind(decoder: Option<&DecoderWrapper>) -> DecoderKind {
    let mut steps = Vec::new();
    if let Some(decoder) = decoder {
        flatten(decoder, &mut steps);
    }
    let mut kind = DecoderKind::PerToken;
    let mut fused = false;
    for (index, step) in steps.iter().enumerate() {
        kind = match step {
            DecoderWrapper::ByteLevel(_) if index == 0 => {
                fused = true;
                DecoderKind::ByteLevel
            }
            DecoderWrapper::ByteFallback(_) if !fused => DecoderKind::ByteFallback,
            DecoderWrapper::Fuse(_) => {
                fused = true;
                kind
            }
            DecoderWrapper::Strip(_) if kind != DecoderKind::ByteLevel => kind,
            DecoderWrapper::Replace(_)
            | DecoderWrapper::Metaspace(_)
            | DecoderWrapper::WordPiece(_)
            | DecoderWrapper::BPE(_)
                if !fused =>
            {
                kind
            }
            // A decoder that needs the whole text, or one that is not known to work token by token.
            _ => return DecoderKind::Whole,
        };
    }
    kind
}

fn flatten<'a>(decoder: &'a DecoderWrapper, steps: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for step in sequence.get_decoders() {
                flatten(step, steps);
            }
        }
        step => steps.push(step),
    }
}

/// The byte of a byte-fallback token such as "<0x0A>".
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// A byte-level token has one character for each byte: printable Latin-1 stands for itself, the
/// other 68 bytes for U+0100 onwards in their order. Added tokens with other characters are plain.
fn byte_level_bytes(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(byte_level_byte)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

fn byte_level_byte(c: char) -> Option<u8> {
    match c {
        '!'..='~' | '¡'..='¬' | '®'..='ÿ' => Some(c as u8),
        '\u{100}'..='\u{120}' => Some((c as u32 - 0x100) as u8),
        '\u{121}'..='\u{142}' => Some((c as u32 - 0x121 + 0x7F) as u8),
        '\u{143}' => Some(0xAD),
        _ => None,
    }
}
