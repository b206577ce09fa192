//! What a peer may say on its control stream (RFC 9114 §6.2.1, §7.2; RFC 9218 §7).
//!
//! In: the frames of the control stream in order. Out: what each of them means. Their order is checked here:
//! SETTINGS come first and once, and identifiers never grow where they may not.

use bytes::Bytes;

use super::code::{self, Http3Error};
use super::settings::{self, Settings};
use super::{frame, priority, varint};

/// Which side of the connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    Settings(Settings),
    /// For a client: requests with this stream id and above were not and will not be handled.
    GoAway(u64),
    /// For a server: the urgency of a request stream.
    Priority {
        stream: u64,
        urgency: u8,
    },
    /// The frame is legal, and there is nothing to do.
    Nothing,
}

/// The reader of one control stream.
#[derive(Debug)]
pub struct Control {
    role: Role,
    has_settings: bool,
    goaway: Option<u64>,
    max_push_id: Option<u64>,
}

impl Control {
    /// `role`: our own side; the stream is the other side's.
    pub fn new(role: Role) -> Self {
        Self { role, has_settings: false, goaway: None, max_push_id: None }
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// When the frame is malformed, or may not come here and now.
    pub fn handle_frame(&mut self, kind: u64, payload: &Bytes) -> Result<Message, Http3Error> {
        match (kind, self.has_settings) {
            (frame::SETTINGS, false) => {
                self.has_settings = true;
                return settings::decode(payload).map(Message::Settings);
            }
            (frame::SETTINGS, true) => {
                return Err(Http3Error::connection(code::FRAME_UNEXPECTED, "SETTINGS came twice"));
            }
            (_, false) => {
                return Err(Http3Error::connection(code::MISSING_SETTINGS, "SETTINGS did not come first"));
            }
            (_, true) => {}
        }
        match (kind, self.role) {
            (frame::GOAWAY, _) => {
                let id = single(payload)?;
                if self.goaway.is_some_and(|before| id > before) || (self.role == Role::Client && id % 4 != 0)
                {
                    return Err(Http3Error::connection(code::ID_ERROR, "GOAWAY has an id that cannot be"));
                }
                self.goaway = Some(id);
                Ok(if self.role == Role::Client { Message::GoAway(id) } else { Message::Nothing })
            }
            (frame::MAX_PUSH_ID, Role::Server) => {
                let id = single(payload)?;
                if self.max_push_id.is_some_and(|before| id < before) {
                    return Err(Http3Error::connection(code::ID_ERROR, "MAX_PUSH_ID shrank"));
                }
                self.max_push_id = Some(id);
                Ok(Message::Nothing)
            }
            // Nothing is ever pushed here, so no push can be cancelled.
            (frame::CANCEL_PUSH, _) => {
                single(payload)?;
                Err(Http3Error::connection(code::ID_ERROR, "CANCEL_PUSH of a push that was never promised"))
            }
            (frame::PRIORITY_UPDATE_REQUEST, Role::Server) => {
                let (stream, size) = varint::decode(payload).ok_or(MALFORMED)?;
                if stream % 4 != 0 {
                    return Err(Http3Error::connection(
                        code::ID_ERROR,
                        "PRIORITY_UPDATE of no request stream",
                    ));
                }
                Ok(Message::Priority { stream, urgency: priority::urgency(&payload[size..]) })
            }
            (frame::PRIORITY_UPDATE_PUSH, Role::Server) => {
                varint::decode(payload).ok_or(MALFORMED)?;
                Err(Http3Error::connection(
                    code::ID_ERROR,
                    "PRIORITY_UPDATE of a push that was never promised",
                ))
            }
            _ => Err(Http3Error::connection(code::FRAME_UNEXPECTED, "a frame only a server may receive")),
        }
    }
}

const MALFORMED: Http3Error = Http3Error::connection(code::FRAME_ERROR, "a control frame is malformed");

fn single(payload: &[u8]) -> Result<u64, Http3Error> {
    match varint::decode(payload) {
        Some((id, size)) if size == payload.len() => Ok(id),
        _ => Err(MALFORMED),
    }
}

/// Unidirectional stream types (§6.2, RFC 9204 §4.2).
pub mod stream_type {
    pub const CONTROL: u64 = 0x0;
    pub const PUSH: u64 = 0x1;
    pub const QPACK_ENCODER: u64 = 0x2;
    pub const QPACK_DECODER: u64 = 0x3;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(value: u64) -> Bytes {
        let mut out = Vec::new();
        varint::encode(&mut out, value);
        out.into()
    }

    fn started(role: Role) -> Control {
        let mut control = Control::new(role);
        control.handle_frame(frame::SETTINGS, &Bytes::new()).unwrap();
        control
    }

    #[test]
    fn settings_come_first_and_once() {
        let mut control = Control::new(Role::Server);
        assert_eq!(control.handle_frame(frame::GOAWAY, &id(0)).unwrap_err().code, code::MISSING_SETTINGS);
        let mut control = started(Role::Server);
        assert_eq!(
            control.handle_frame(frame::SETTINGS, &Bytes::new()).unwrap_err().code,
            code::FRAME_UNEXPECTED
        );
    }

    #[test]
    fn a_goaway_tells_a_client_which_requests_to_send_again() {
        let mut control = started(Role::Client);
        let none = varint::MAX - 3;
        assert_eq!(control.handle_frame(frame::GOAWAY, &id(none)), Ok(Message::GoAway(none)));
        assert_eq!(control.handle_frame(frame::GOAWAY, &id(8)), Ok(Message::GoAway(8)));
        assert_eq!(control.handle_frame(frame::GOAWAY, &id(12)).unwrap_err().code, code::ID_ERROR);
        assert_eq!(
            started(Role::Client).handle_frame(frame::GOAWAY, &id(7)).unwrap_err().code,
            code::ID_ERROR
        );
    }

    #[test]
    fn a_priority_update_names_a_request_stream() {
        let mut control = started(Role::Server);
        let update = Bytes::from_static(b"\x08u=1, i");
        assert_eq!(
            control.handle_frame(frame::PRIORITY_UPDATE_REQUEST, &update),
            Ok(Message::Priority { stream: 8, urgency: 1 })
        );
        for (kind, payload) in [
            (frame::PRIORITY_UPDATE_REQUEST, &b"\x03u=1"[..]),
            (frame::PRIORITY_UPDATE_PUSH, b"\x00u=1"),
            (frame::CANCEL_PUSH, b"\x00"),
        ] {
            let error = control.handle_frame(kind, &Bytes::copy_from_slice(payload)).unwrap_err();
            assert_eq!(error.code, code::ID_ERROR);
        }
    }

    #[test]
    fn malformed_ids_and_a_shrinking_max_push_id_are_errors() {
        let mut control = started(Role::Server);
        assert_eq!(control.handle_frame(frame::MAX_PUSH_ID, &id(5)), Ok(Message::Nothing));
        assert_eq!(control.handle_frame(frame::MAX_PUSH_ID, &id(4)).unwrap_err().code, code::ID_ERROR);
        for bad in [&b""[..], b"\x01\x02", b"\x40"] {
            let error = control.handle_frame(frame::GOAWAY, &Bytes::copy_from_slice(bad)).unwrap_err();
            assert_eq!(error.code, code::FRAME_ERROR);
        }
        let error = started(Role::Client).handle_frame(frame::MAX_PUSH_ID, &id(1)).unwrap_err();
        assert_eq!(error.code, code::FRAME_UNEXPECTED);
    }
}
