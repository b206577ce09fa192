//! The one table of API dialects: what headrace knows of each API's words.
//!
//! In: a request's path, and how its answer is streamed. Out: the row that says where a caller puts a key, which event
//! is the answer's last, and how an error is told. Whoever needs a word of an API reads it here: the engine, the
//! gateway, the client, the lab. A dialect that is not here passes through all the same, as OpenAI's.

pub mod errors;
pub mod marks;

use errors::Errors;
use marks::Mark;

use crate::events::formats::Format;

/// One row of the table. A *part* of a path begins with `/` or `:` and is found anywhere in it, so that an API is known
/// behind a prefix, too; the longest part that is found decides.
pub struct Dialect {
    /// Stable name.
    pub name: &'static str,
    /// Parts with which the paths end whose answer is generated.
    pub generates: &'static [&'static str],
    /// Parts of other paths of this API.
    pub paths: &'static [&'static str],
    /// Header fields in which callers give a key, in lower case; the first is the API's own. In `authorization` a key
    /// stands behind `Bearer`.
    pub key_fields: &'static [&'static str],
    /// Query parameters in which callers give a key.
    pub key_queries: &'static [&'static str],
    /// Names of the formats in which its answers are streamed.
    pub formats: &'static [&'static str],
    /// Any of these tells an answer's last event.
    pub last: &'static [Mark],
    pub errors: Errors,
    /// Members of an event that hold what a model has generated.
    pub texts: &'static [&'static str],
}

/// The first row that has a format is taken for an answer in that format whose path tells nothing.
pub static DIALECTS: &[Dialect] = &[
    // https://platform.openai.com/docs/api-reference/chat-streaming
    Dialect {
        name: "openai",
        generates: &["/chat/completions", "/completions"],
        paths: &["/v1/", "/v1/models", "/v1/threads/", "/api/v1/", "/v1beta/openai/"],
        key_fields: &["authorization"],
        key_queries: &[],
        formats: &["sse"],
        last: &[DONE],
        errors: errors::OPENAI,
        texts: &["content", "text", "reasoning", "reasoning_content"],
    },
    // https://platform.openai.com/docs/api-reference/responses-streaming
    Dialect {
        name: "openai-responses",
        generates: &["/responses"],
        paths: &["/v1/responses"],
        key_fields: &["authorization"],
        key_queries: &[],
        formats: &["sse"],
        last: RESPONSES_LAST,
        errors: errors::RESPONSES,
        texts: &["delta"],
    },
    // https://platform.openai.com/docs/api-reference/audio
    Dialect {
        name: "openai-audio",
        generates: &["/audio/speech", "/audio/transcriptions", "/audio/translations"],
        paths: &[],
        key_fields: &["authorization"],
        key_queries: &[],
        formats: &["sse"],
        last: &[Mark::Type("speech.audio.done"), Mark::Type("transcript.text.done"), DONE],
        errors: errors::OPENAI,
        texts: &["audio", "delta"],
    },
    // https://learn.microsoft.com/azure/ai-foundry/openai/reference
    Dialect {
        name: "azure",
        generates: &[],
        paths: &["/openai/deployments/", "/openai/responses"],
        key_fields: &["api-key", "authorization", "ocp-apim-subscription-key"],
        key_queries: &["api-key", "subscription-key"],
        formats: &["sse"],
        last: RESPONSES_LAST,
        errors: errors::RESPONSES,
        texts: &["content", "text", "delta"],
    },
    // https://docs.anthropic.com/en/api/messages-streaming
    Dialect {
        name: "anthropic",
        generates: &["/messages"],
        paths: &["/v1/messages", "/v1/models", "/publishers/anthropic/"],
        key_fields: &["x-api-key", "authorization"],
        key_queries: &[],
        formats: &["sse"],
        last: &[Mark::Type("message_stop"), DONE],
        errors: errors::OPENAI,
        texts: &["text", "thinking", "partial_json"],
    },
    // https://github.com/ollama/ollama/blob/main/docs/api.md
    Dialect {
        name: "ollama",
        generates: &["/api/chat", "/api/generate"],
        paths: &["/api/"],
        key_fields: &["authorization"],
        key_queries: &[],
        formats: &["ndjson"],
        last: &[Mark::True(&["done"])],
        errors: errors::OLLAMA,
        texts: &["content", "response", "thinking"],
    },
    // https://ai.google.dev/api/generate-content
    Dialect {
        name: "gemini",
        generates: &[":streamGenerateContent", ":generateContent"],
        paths: &["/v1beta/", "/v1alpha/", "/publishers/google/"],
        key_fields: &["x-goog-api-key", "authorization"],
        key_queries: &["key", "access_token"],
        formats: &["sse"],
        last: &[Mark::Text(&["candidates", "finishReason"]), DONE],
        errors: errors::GEMINI,
        texts: &["text"],
    },
    // https://docs.cohere.com/reference/chat-stream
    Dialect {
        name: "cohere",
        generates: &["/v2/chat"],
        paths: &["/v2/embed", "/v2/rerank"],
        key_fields: &["authorization"],
        key_queries: &[],
        formats: &["sse"],
        last: &[Mark::Type("message-end"), DONE],
        errors: errors::COHERE,
        texts: &["text", "thinking"],
    },
    // https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
    Dialect {
        name: "llama.cpp",
        generates: &["/completion", "/infill"],
        paths: &[],
        key_fields: &["authorization", "x-api-key"],
        key_queries: &[],
        formats: &["sse"],
        last: &[Mark::True(&["stop"]), DONE],
        errors: errors::OPENAI,
        texts: &["content"],
    },
];

/// Proxies send it behind any API's own last event, and it is never a model's words.
const DONE: Mark = Mark::Data("[DONE]");

const RESPONSES_LAST: &[Mark] = &[
    Mark::Type("response.completed"),
    Mark::Type("response.failed"),
    Mark::Type("response.incomplete"),
    DONE,
];

impl Dialect {
    /// The row of a request, by its path or target; a query tells nothing. The first row is taken for what none has.
    pub fn of(target: &str) -> &'static Self {
        let path = path_of(target);
        // Of equal ones, the last is the greatest.
        let best = DIALECTS.iter().rev().max_by_key(|dialect| dialect.match_length(path));
        best.unwrap_or(&DIALECTS[0])
    }

    /// All rows that have this path by as long a part, the row of the request first.
    pub fn all_of(target: &str) -> Vec<&'static Self> {
        let path = path_of(target);
        let (best, length) = (Self::of(target), Self::of(target).match_length(path));
        let others =
            DIALECTS.iter().filter(|other| other.name != best.name && other.match_length(path) == length);
        std::iter::once(best).chain(others.filter(|_| length > 0)).collect()
    }

    /// The row of an answer to such a request: this one, if it speaks the answer's format, and otherwise the first that
    /// does.
    pub fn confirmed(&'static self, format: &Format) -> &'static Self {
        let speaks = |dialect: &&Dialect| dialect.formats.contains(&format.name);
        Some(self).filter(speaks).or_else(|| DIALECTS.iter().find(speaks)).unwrap_or(self)
    }

    /// The longest part of the path that this row has; 0 when there is none.
    fn match_length(&self, path: &str) -> usize {
        let ends = self.generates.iter().filter(|part| ends_with(path, part));
        let holds = self.paths.iter().filter(|part| holds(path, part));
        ends.chain(holds).map(|part| part.len()).max().unwrap_or(0)
    }
}

/// Whether the answer to a POST there is generated, and a second one costs as much as the first.
pub fn generates(target: &str) -> bool {
    let path = path_of(target);
    DIALECTS.iter().any(|dialect| dialect.generates.iter().any(|part| ends_with(path, part)))
}

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or("")
}

fn ends_with(path: &str, part: &str) -> bool {
    path.trim_end_matches('/').ends_with(part)
}

/// Whether a part is found in a path, and a segment ends with it.
fn holds(path: &str, part: &str) -> bool {
    path.match_indices(part).any(|(at, _)| {
        let rest = &path[at + part.len()..];
        part.ends_with('/') || rest.is_empty() || rest.starts_with(['/', ':'])
    })
}

#[cfg(test)]
mod tests {
    use super::errors::Refusal;
    use super::*;
    use crate::events::formats::FORMATS;

    #[test]
    fn a_dialect_is_known_by_its_path() {
        for (target, name) in [
            ("/v1/chat/completions", "openai"),
            ("/chat/completions", "openai"),
            ("/prefix/v1/chat/completions?x=/v1/messages", "openai"),
            ("/api/v1/chat/completions", "openai"),
            ("/api/v1/models", "openai"),
            ("/v1beta/openai/chat/completions", "openai"),
            ("/v1/threads/t/messages", "openai"),
            ("/v1/models", "openai"),
            ("/", "openai"),
            ("", "openai"),
            ("/unknown", "openai"),
            ("/v1/responses", "openai-responses"),
            ("/v1/responses/resp_1?stream=true", "openai-responses"),
            ("/openai/v1/responses", "openai-responses"),
            ("/openai/deployments/gpt/chat/completions?api-version=1", "azure"),
            ("/openai/responses?api-version=1", "azure"),
            ("/v1/messages", "anthropic"),
            ("/v1/messages/", "anthropic"),
            ("/v1/messages?beta=true", "anthropic"),
            ("/v1/messages/count_tokens", "anthropic"),
            ("/anthropic/v1/messages", "anthropic"),
            ("/v1/messagesx", "openai"),
            ("/api/chat", "ollama"),
            ("/api/tags", "ollama"),
            ("/ollama/api/generate", "ollama"),
            ("/v1beta/models/gemini-pro:streamGenerateContent?alt=sse&key=k", "gemini"),
            ("/v1/models/gemini-pro:generateContent", "gemini"),
            ("/v1/projects/p/locations/l/publishers/google/models/m:streamGenerateContent", "gemini"),
            ("/v2/chat", "cohere"),
            ("/completion", "llama.cpp"),
        ] {
            assert_eq!(Dialect::of(target).name, name, "{target}");
        }
    }

    #[test]
    fn every_row_can_be_found_by_its_own_parts() {
        for dialect in DIALECTS {
            for part in dialect.generates {
                assert_eq!(Dialect::of(part).name, dialect.name, "{part}");
                assert!(
                    generates(&format!("/base{part}?query")) && !generates(&format!("{part}/more")),
                    "{part}"
                );
            }
            for part in dialect.paths {
                let rows = Dialect::all_of(&format!("{part}/x"));
                assert!(rows.iter().any(|row| row.name == dialect.name), "{part}");
                assert_eq!(rows[0].name, Dialect::of(part).name, "{part}");
            }
        }
        let names = |target| Dialect::all_of(target).iter().map(|row| row.name).collect::<Vec<_>>();
        assert_eq!(names("/v1/models?limit=1"), ["openai", "anthropic"], "both have it");
        assert_eq!(names("/unknown"), ["openai"]);
        assert!(!generates("/v1/models") && !generates("/v1/embeddings"));
    }

    #[test]
    fn an_answer_in_another_format_is_taken_for_the_first_dialect_that_has_it() {
        for dialect in DIALECTS {
            for format in FORMATS {
                let found = dialect.confirmed(format);
                let expected = if dialect.formats.contains(&format.name) { dialect.name } else { found.name };
                assert_eq!(found.name, expected);
                assert!(found.formats.contains(&format.name));
            }
        }
        assert_eq!(Dialect::of("/unknown").confirmed(&FORMATS[0]).name, "openai");
        assert_eq!(Dialect::of("/unknown").confirmed(&FORMATS[1]).name, "ollama");
    }

    #[test]
    fn rows_are_sound() {
        let formats: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        for (index, dialect) in DIALECTS.iter().enumerate() {
            assert!(!DIALECTS[..index].iter().any(|other| other.name == dialect.name), "{}", dialect.name);
            assert!(!dialect.key_fields.is_empty() && !dialect.last.is_empty() && !dialect.texts.is_empty());
            assert!(dialect.formats.iter().all(|name| formats.contains(name)), "{}", dialect.name);
            assert!(dialect.key_fields.iter().all(|name| *name == name.to_ascii_lowercase()));
            let parts = dialect.generates.iter().chain(dialect.paths);
            assert!(parts.clone().count() > 0 && parts.clone().all(|part| part.starts_with(['/', ':'])));
        }
    }

    #[test]
    fn every_error_is_json_that_tells_code_and_sentence() {
        let message = "a \"quoted\" sentence\nwith a line, \u{1}, é";
        for dialect in DIALECTS {
            for status in [400, 401, 403, 404, 408, 409, 413, 422, 425, 429, 431, 500, 501, 502, 503, 504] {
                for param in [None, Some("model")] {
                    let refusal = Refusal { status, code: "some_code", message, param };
                    for text in [(dialect.errors.body)(&refusal), (dialect.errors.event)(&refusal)] {
                        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                        let error = value.get("error").unwrap_or(&value);
                        let told = error.get("message").unwrap_or(error);
                        assert_eq!(told.as_str(), Some(message), "{}: {text}", dialect.name);
                        assert!(
                            text.contains("\"some_code\"") && !text.contains('\n'),
                            "{}: {text}",
                            dialect.name
                        );
                    }
                }
            }
        }
    }
}
