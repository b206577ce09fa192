//! An error, in the words of each API.
//!
//! In: a status, a stable code, a sentence. Out: the JSON that the API's clients read, as the body of an answer or as
//! the data of a stream's last event. One function for each shape; which API has which is a column of the table
//! (`mod.rs`).

use crate::Kind;

/// An error, before it has a shape.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// The HTTP status; in a stream whose status was sent already, the one that it would have been.
    pub status: u16,
    /// A stable name: a kind's slug, or one of the gateway's own.
    pub code: &'a str,
    /// A sentence for people.
    pub message: &'a str,
    /// The part of the request that was wrong.
    pub param: Option<&'a str>,
}

impl From<Kind> for Refusal<'static> {
    fn from(kind: Kind) -> Self {
        Self { status: kind.status(), code: kind.slug(), message: kind.sentence(), param: None }
    }
}

/// How an API tells an error.
#[derive(Clone, Copy)]
pub struct Errors {
    /// The body of an answer.
    pub body: fn(&Refusal<'_>) -> String,
    /// The data of an event, when an answer breaks off.
    pub event: fn(&Refusal<'_>) -> String,
    /// The name of that event, where events have names.
    pub event_name: Option<&'static str>,
}

/// OpenAI's clients read `error` in a body or in the data of any event; Anthropic's read `type` beside it, and an event
/// named `error`. One shape serves both, also at a path that neither is known by.
pub const OPENAI: Errors = Errors { body: openai, event: openai, event_name: Some("error") };

/// In a stream of OpenAI's Responses API, an `error` event has the code and the sentence at its top.
pub const RESPONSES: Errors = Errors { body: openai, event: responses_event, event_name: Some("error") };

pub const OLLAMA: Errors = Errors { body: ollama, event: ollama, event_name: Some("error") };

/// Google's clients take an event for malformed that has a name.
pub const GEMINI: Errors = Errors { body: gemini, event: gemini, event_name: None };

pub const COHERE: Errors = Errors { body: cohere, event: cohere, event_name: Some("error") };

fn openai(refusal: &Refusal<'_>) -> String {
    format!(r#"{{"type":"error","error":{}}}"#, error_object(refusal))
}

fn responses_event(refusal: &Refusal<'_>) -> String {
    let (message, code) = (text(refusal.message), text(refusal.code));
    let param = refusal.param.map_or("null".to_owned(), text);
    let error = error_object(refusal);
    format!(r#"{{"type":"error","code":{code},"message":{message},"param":{param},"error":{error}}}"#)
}

fn error_object(refusal: &Refusal<'_>) -> String {
    let (message, code) = (text(refusal.message), text(refusal.code));
    let param = refusal.param.map_or("null".to_owned(), text);
    let kind = text(openai_type(refusal.status));
    format!(r#"{{"message":{message},"type":{kind},"param":{param},"code":{code}}}"#)
}

/// What OpenAI's and Anthropic's SDKs call these statuses; others go by their hundreds.
fn openai_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        502 => "upstream_error",
        503 => "overloaded_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

fn ollama(refusal: &Refusal<'_>) -> String {
    format!(r#"{{"error":{},"code":{}}}"#, text(refusal.message), text(refusal.code))
}

/// `google.rpc.Status` with an `ErrorInfo` (https://google.aip.dev/193).
fn gemini(refusal: &Refusal<'_>) -> String {
    let (status, message, reason) = (refusal.status, text(refusal.message), text(refusal.code));
    let name = text(google_status(status));
    let info = format!(
        r#"{{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":{reason},"domain":"headrace"}}"#
    );
    format!(r#"{{"error":{{"code":{status},"message":{message},"status":{name},"details":[{info}]}}}}"#)
}

/// The name of `google.rpc.Code` that stands for an HTTP status.
fn google_status(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        408 | 504 => "DEADLINE_EXCEEDED",
        409 => "ABORTED",
        429 => "RESOURCE_EXHAUSTED",
        499 => "CANCELLED",
        501 => "UNIMPLEMENTED",
        425 | 502 | 503 => "UNAVAILABLE",
        500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    }
}

fn cohere(refusal: &Refusal<'_>) -> String {
    format!(r#"{{"message":{},"code":{}}}"#, text(refusal.message), text(refusal.code))
}

/// A JSON string (RFC 8259 §7).
fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
