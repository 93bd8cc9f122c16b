//! Converts the messages of a request to the form that chat templates expect.
//!
//! Clients send messages of the OpenAI API; templates are written for messages of Transformers. The
//! differences are members that are null, three names for the assistant's reasoning, and arguments
//! of tool calls, which are a string of JSON in the API and an object in templates.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

const REASONING_KEYS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// The depth to which the gateway limits the JSON of a request.
const MAX_ARGUMENT_DEPTH: usize = 64;

/// Options for templates that differ from most others.
#[derive(Clone, Copy)]
pub struct Wishes {
    /// An assistant's message without content gets none instead of an empty string.
    pub none_for_no_content: bool,
    /// Arguments of tool calls stay strings.
    pub arguments_as_text: bool,
}

pub fn parse(what: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .map_err(|error| Error::invalid(format!("{what}: not valid JSON: {error}")))
}

/// Parses the JSON text `messages` and converts the messages for a template.
pub fn messages(messages: &str, wishes: Wishes) -> Result<Value> {
    let Value::Array(messages) = parse("messages", messages)? else {
        return Err(Error::invalid("messages: must be an array in JSON"));
    };
    if messages.is_empty() {
        return Err(Error::invalid("messages: empty; at least one is needed"));
    }
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(index, message)| {
            let Value::Object(message) = message else {
                return Err(Error::invalid(format!(
                    "messages[{index}]: must be an object in JSON"
                )));
            };
            normalized(message, index, wishes).map(Value::Object)
        })
        .collect()
}

fn normalized(
    mut message: Map<String, Value>,
    index: usize,
    wishes: Wishes,
) -> Result<Map<String, Value>> {
    // Clients send null for missing members, but templates test whether the member exists.
    message.retain(|_, member| !member.is_null());
    alias_reasoning(&mut message);
    if message.get("role").and_then(Value::as_str) != Some("assistant") {
        return Ok(message);
    }
    // A message with tool calls may lack content. Most templates print the content without a test.
    if !message.contains_key("content") {
        let content = match wishes.none_for_no_content {
            true => Value::Null,
            false => Value::from(""),
        };
        message.insert("content".to_string(), content);
    }
    if message
        .get("tool_calls")
        .is_some_and(|calls| calls.as_array().is_some_and(Vec::is_empty))
    {
        message.remove("tool_calls");
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for (call_index, call) in calls.into_iter().flatten().enumerate() {
        if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
            let place = format!("messages[{index}].tool_calls[{call_index}].function.arguments");
            set_arguments(function, &place, wishes.arguments_as_text)?;
        }
    }
    Ok(message)
}

/// The assistant's reasoning has three names, of which a template reads one: sets all of them.
fn alias_reasoning(message: &mut Map<String, Value>) {
    let reasoning = REASONING_KEYS.iter().find_map(|key| message.get(*key));
    if let Some(reasoning) = reasoning.cloned() {
        message
            .entry("thinking")
            .or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_string(), reasoning);
    }
}

fn set_arguments(function: &mut Map<String, Value>, place: &str, as_text: bool) -> Result<()> {
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) if as_text => Value::from("{}"),
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if !as_text => parsed_arguments(text, place)?,
        Some(_) => return Ok(()),
    };
    function.insert("arguments".to_string(), arguments);
    Ok(())
}

fn parsed_arguments(text: &str, place: &str) -> Result<Value> {
    if text.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    if depth(text) > MAX_ARGUMENT_DEPTH {
        return Err(Error::invalid(format!(
            "{place}: nested deeper than {MAX_ARGUMENT_DEPTH} levels"
        )));
    }
    match parse(place, text)? {
        Value::Null => Ok(Value::Object(Map::new())),
        arguments => Ok(arguments),
    }
}

/// How deep arrays and objects are nested in a JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}
