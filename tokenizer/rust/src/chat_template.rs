//! Conversations rendered by a checkpoint's chat template, as `apply_chat_template` of Hugging Face
//! Transformers renders them.

use std::collections::BTreeMap;
use std::error::Error as StdError;

use minijinja::value::{Serde, Value};
use minijinja::Environment;
use regex::Regex;

use crate::chat_builtins::{self, Raised};
use crate::checkpoint::ChatTemplates;
use crate::error::{Code, Error, Result};

const DEFAULT_TEMPLATE: &str = "default";
const TOOL_TEMPLATE: &str = "tool_use";
const REASONING_KEYS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<String, String>,
    /// Why a template could not be compiled, by name: completions still work without it.
    broken: BTreeMap<String, String>,
}

impl ChatTemplate {
    pub fn new(templates: &ChatTemplates, special_tokens: BTreeMap<String, String>) -> Self {
        let mut environment = chat_builtins::environment();
        let mut broken = BTreeMap::new();
        for (name, source) in templates {
            let source = without_generation_tags(source);
            if let Err(error) = environment.add_template_owned(name.clone(), source) {
                broken.insert(name.clone(), error.to_string());
            }
        }
        Self {
            environment,
            special_tokens,
            broken,
        }
    }

    /// Whether there is a template for conversations without tools.
    pub fn exists(&self) -> bool {
        self.has(DEFAULT_TEMPLATE)
    }

    /// `tools` and `variables` are JSON texts or empty; `variables` is an object whose members the
    /// template sees by name.
    pub fn render(
        &self,
        messages: &str,
        tools: &str,
        variables: &str,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let messages = parse("messages", "an array", messages, |json| json.is_array())?;
        let messages = normalized(messages)?;
        let tools = optional("tools", "an array", tools, |json| json.is_array())?;
        let variables = optional("template variables", "an object", variables, |json| {
            json.is_object()
        })?;

        let mut context = serde_json::Map::new();
        for (key, token) in &self.special_tokens {
            context.insert(key.clone(), token.clone().into());
        }
        if let serde_json::Value::Object(variables) = variables {
            context.extend(variables);
        }
        let with_tools = !tools.is_null();
        context.insert("messages".to_string(), messages);
        context.insert("tools".to_string(), tools);
        context
            .entry("documents")
            .or_insert(serde_json::Value::Null);
        context.insert(
            "add_generation_prompt".to_string(),
            add_generation_prompt.into(),
        );

        let template = self.template(with_tools)?;
        template
            .render(Value::from(Serde(context)))
            .map_err(|error| Error::invalid(render_message(&error)))
    }

    fn has(&self, name: &str) -> bool {
        self.broken.contains_key(name) || self.environment.get_template(name).is_ok()
    }

    fn template(&self, with_tools: bool) -> Result<minijinja::Template<'_, '_>> {
        let name = if with_tools && self.has(TOOL_TEMPLATE) {
            TOOL_TEMPLATE
        } else {
            DEFAULT_TEMPLATE
        };
        if let Some(reason) = self.broken.get(name) {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!("the model's chat template does not compile: {reason}"),
            ));
        }
        self.environment.get_template(name).map_err(|_| {
            Error::invalid("the model has no chat template; only plain completions are possible")
        })
    }
}

fn parse(
    what: &str,
    kind: &str,
    text: &str,
    is_kind: impl Fn(&serde_json::Value) -> bool,
) -> Result<serde_json::Value> {
    let json: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| Error::invalid(format!("{what}: not valid JSON: {error}")))?;
    if !is_kind(&json) {
        return Err(Error::invalid(format!("{what}: must be {kind} in JSON")));
    }
    Ok(json)
}

fn optional(
    what: &str,
    kind: &str,
    text: &str,
    is_kind: impl Fn(&serde_json::Value) -> bool,
) -> Result<serde_json::Value> {
    if text.is_empty() {
        return Ok(serde_json::Value::Null);
    }
    parse(what, kind, text, |json| json.is_null() || is_kind(json))
}

/// Messages as templates expect them. Clients write null for what a message lacks, but templates ask
/// whether the member is there; and the assistant's reasoning goes by three names, of which a
/// template knows one.
fn normalized(messages: serde_json::Value) -> Result<serde_json::Value> {
    let serde_json::Value::Array(messages) = messages else {
        return Err(Error::invalid("messages: must be an array in JSON"));
    };
    if messages.is_empty() {
        return Err(Error::invalid("messages: empty; at least one is needed"));
    }
    let messages = messages.into_iter().enumerate().map(|(index, message)| {
        let serde_json::Value::Object(mut message) = message else {
            return Err(Error::invalid(format!(
                "messages[{index}]: must be an object in JSON"
            )));
        };
        message.retain(|_, member| !member.is_null());
        let reasoning = REASONING_KEYS.iter().find_map(|key| message.get(*key));
        if let Some(reasoning) = reasoning.cloned() {
            message
                .entry("thinking")
                .or_insert_with(|| reasoning.clone());
            message.insert("reasoning_content".to_string(), reasoning);
        }
        Ok(serde_json::Value::Object(message))
    });
    messages.collect()
}

/// `{% generation %}` marks the assistant's own text for training masks and prints nothing. As an
/// always true `if` it keeps its effect on the whitespace around it.
fn without_generation_tags(source: &str) -> String {
    let opening = Regex::new(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})").expect("constant pattern");
    let closing = Regex::new(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})").expect("constant pattern");
    let source = opening.replace_all(source, "${1}if true${2}");
    closing.replace_all(&source, "${1}endif${2}").into_owned()
}

/// One line for the client: what the template itself says, else what went wrong in it.
fn render_message(error: &minijinja::Error) -> String {
    let mut line = format!("the chat template failed: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return format!("the chat template refused the messages: {message}");
        }
        line.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    line
}
