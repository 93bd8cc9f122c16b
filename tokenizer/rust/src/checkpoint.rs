//! Reads the tokenizer settings of a Hugging Face checkpoint from the files that may have them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::error::{Code, Error, Result};

const SPECIAL_TOKEN_KEYS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The folder of additional named templates, one in each file.
const ADDITIONAL_TEMPLATES: &str = "additional_chat_templates";

/// The texts of the chat templates by name; "default" is the one without tools.
pub type ChatTemplates = BTreeMap<String, String>;

pub struct Checkpoint {
    pub tokenizer_json: Vec<u8>,
    /// Key ("bos_token") to token; keys set to null or absent are left out.
    pub special_tokens: BTreeMap<String, String>,
    /// The beginning-of-sequence id by number, if the tokenizer's own files have none.
    pub bos_id: Option<u32>,
    /// End-of-sequence ids by number, from generation_config.json or else config.json.
    pub eos_ids: Vec<u32>,
    pub chat_templates: ChatTemplates,
}

/// Reads the checkpoint in `dir`. Only tokenizer.json is required.
pub fn read(dir: &Path) -> Result<Checkpoint> {
    let tokenizer_json = read_file(dir, "tokenizer.json")?.ok_or_else(|| {
        Error::new(
            Code::NotFound,
            format!("{} has no tokenizer.json", dir.display()),
        )
    })?;
    let tokenizer_config = read_json(dir, "tokenizer_config.json")?;
    let special_tokens_map = read_json(dir, "special_tokens_map.json")?;
    let generation_config = read_json(dir, "generation_config.json")?;
    let config = read_json(dir, "config.json")?;

    let mut special_tokens = BTreeMap::new();
    for key in SPECIAL_TOKEN_KEYS {
        let value = tokenizer_config
            .get(key)
            .or_else(|| special_tokens_map.get(key));
        if let Some(content) = value.and_then(token_content) {
            special_tokens.insert(key.to_string(), content);
        }
    }
    // "bos_token": null means that the model has none, whatever number config.json has.
    let bos_is_settled = tokenizer_config.get("bos_token").is_some();
    let bos_id = if bos_is_settled {
        None
    } else {
        model_ids("bos_token_id", &generation_config, &config)?
            .first()
            .copied()
    };
    Ok(Checkpoint {
        tokenizer_json,
        special_tokens,
        bos_id,
        eos_ids: model_ids("eos_token_id", &generation_config, &config)?,
        chat_templates: chat_templates(dir, &tokenizer_config)?,
    })
}

/// The bytes of a file, or None if it does not exist.
fn read_file(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = dir.join(name);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::new(
            Code::FailedPrecondition,
            format!("cannot read {}: {error}", path.display()),
        )),
    }
}

/// A JSON object, or null if the file does not exist.
fn read_json(dir: &Path, name: &str) -> Result<Value> {
    let Some(bytes) = read_file(dir, name)? else {
        return Ok(Value::Null);
    };
    let path = dir.join(name);
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
    if !value.is_object() {
        return Err(Error::invalid(format!(
            "{}: not a JSON object",
            path.display()
        )));
    }
    Ok(value)
}

/// A special token is written as its text or as an AddedToken object.
fn token_content(value: &Value) -> Option<String> {
    match value {
        Value::String(content) => Some(content.clone()),
        Value::Object(token) => token.get("content")?.as_str().map(str::to_string),
        _ => None,
    }
}

/// `key` of generation_config.json, else of config.json, else of the text part of a config.json
/// that describes several models: one id or a list.
fn model_ids(key: &str, generation_config: &Value, config: &Value) -> Result<Vec<u32>> {
    let places = [
        generation_config.get(key),
        config.get(key),
        config.get("text_config").and_then(|text| text.get(key)),
    ];
    let Some(value) = places.into_iter().flatten().find(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    let ids = match value {
        Value::Array(ids) => ids.as_slice(),
        id => std::slice::from_ref(id),
    };
    ids.iter()
        .map(|id| {
            id.as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "{key} is {value}; allowed are a token id or a list of them"
                    ))
                })
        })
        .collect()
}

/// A chat_template.jinja file replaces the templates in tokenizer_config.json: one template, or a
/// list of named ones.
fn chat_templates(dir: &Path, tokenizer_config: &Value) -> Result<ChatTemplates> {
    let mut templates = ChatTemplates::new();
    match tokenizer_config.get("chat_template") {
        None | Some(Value::Null) => {}
        Some(Value::String(source)) => {
            templates.insert("default".to_string(), source.clone());
        }
        Some(Value::Array(entries)) => {
            for entry in entries {
                let name = entry.get("name").and_then(Value::as_str);
                let source = entry.get("template").and_then(Value::as_str);
                let (Some(name), Some(source)) = (name, source) else {
                    return Err(Error::invalid(
                        "chat_template: every entry of the list needs a name and a template",
                    ));
                };
                templates.insert(name.to_string(), source.to_string());
            }
        }
        Some(_) => {
            return Err(Error::invalid(
                "chat_template is neither a string nor a list of named templates",
            ));
        }
    }
    let from_files = template_files(dir)?;
    Ok(if from_files.is_empty() {
        templates
    } else {
        from_files
    })
}

/// Templates in files of their own, which replace those in tokenizer_config.json.
fn template_files(dir: &Path) -> Result<ChatTemplates> {
    let mut templates = ChatTemplates::new();
    if let Some(source) = read_template(dir, "chat_template.jinja")? {
        templates.insert("default".to_string(), source);
    }
    let Ok(entries) = fs::read_dir(dir.join(ADDITIONAL_TEMPLATES)) else {
        return Ok(templates);
    };
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if let Some(name) = file.strip_suffix(".jinja") {
            if let Some(source) = read_template(dir, &format!("{ADDITIONAL_TEMPLATES}/{file}"))? {
                templates.insert(name.to_string(), source);
            }
        }
    }
    Ok(templates)
}

fn read_template(dir: &Path, name: &str) -> Result<Option<String>> {
    let Some(bytes) = read_file(dir, name)? else {
        return Ok(None);
    };
    let source = String::from_utf8(bytes);
    source
        .map(Some)
        .map_err(|error| Error::invalid(format!("{}: {error}", dir.join(name).display())))
}
