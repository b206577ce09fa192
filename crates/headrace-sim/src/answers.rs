//! The application of both sides: requests, and answers that come token by token.
//!
//! In: events of connections. Out: what is written to streams, when the next tokens are due, and a record of
//! each answer: when it was asked for, heard, when each token arrived, whether a byte was wrong. The source is
//! open-loop: a token is due at a time fixed when the request is heard, whatever the network does meanwhile.
//!
//! There is no HTTP/3 in it. A request is its answer's number and padding, then FIN; a token is one write of so
//! many bytes, then FIN after the last. Both sides open a control stream, as HTTP/3 does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use headrace_core::recovery::silence::SilenceProbe;
use quinn_proto::{Connection, Dir, Event, StreamEvent, StreamId, VarInt, WriteError};

use crate::answer::{Answer, Shape, byte};
use crate::side::Role;

/// As many bytes as a stream type and SETTINGS have.
const CONTROL: [u8; 16] = [0; 16];
/// H3_REQUEST_CANCELLED.
const CANCELLED: VarInt = VarInt::from_u32(0x10c);

/// What a client's connection has beside answers.
struct Client {
    control: Option<StreamId>,
    /// It probes when a live stream falls silent; `None`: nothing does.
    detector: Option<SilenceProbe>,
    waiting: VecDeque<usize>,
}

/// All answers of a simulation, in the order they were asked for.
#[derive(Default)]
pub struct Answers {
    all: Vec<Answer>,
    clients: BTreeMap<usize, Client>,
    heard: BTreeMap<(usize, StreamId), usize>,
    stopped_unheard: BTreeSet<(usize, StreamId)>,
    requests: BTreeMap<(usize, StreamId), Vec<u8>>,
    at_client: BTreeMap<(usize, StreamId), usize>,
    due: Vec<(Duration, usize)>,
}

impl Answers {
    pub fn all(&self) -> &[Answer] {
        &self.all
    }

    pub fn get(&self, answer: usize) -> &Answer {
        &self.all[answer]
    }

    /// Whether each has ended, for the client.
    pub fn are_ended(&self) -> bool {
        self.all.iter().all(|answer| answer.ended_at.is_some() || answer.wrong.is_some())
    }

    /// A token is due at this time: call [`Self::handle_due`] then.
    pub fn poll_due(&mut self) -> Option<(Duration, usize)> {
        self.due.pop()
    }

    /// A client's connection began.
    pub fn handle_connect(&mut self, handle: usize, connection: &mut Connection, detects: bool) {
        let detector = detects.then(SilenceProbe::default);
        let mut client = Client { control: None, detector, waiting: VecDeque::new() };
        client.open_control(connection);
        self.clients.insert(handle, client);
    }

    /// Asks for an answer; it leaves when the connection has a stream for it.
    pub fn ask(&mut self, now: Duration, handle: usize, shape: Shape, connection: &mut Connection) -> usize {
        self.all.push(Answer::new(shape, handle, now));
        let number = self.all.len() - 1;
        if let Some(client) = self.clients.get_mut(&handle) {
            client.waiting.push_back(number);
        }
        self.open_waiting(handle, connection);
        number
    }

    /// The client stops reading an answer (STOP_SENDING), or withdraws a request that has not left.
    pub fn stop(&mut self, answer: usize, connection: &mut Connection) {
        let record = &mut self.all[answer];
        match record.stream {
            Some(stream) => {
                let _ = connection.recv_stream(stream).stop(CANCELLED);
            }
            None => record.is_withdrawn = true,
        }
        if let Some(client) = self.clients.get_mut(&record.connection) {
            client.waiting.retain(|waiting| *waiting != answer);
        }
    }

    /// Returns when the client of this connection probes whether the path still works.
    pub fn detector_due(&self) -> Option<(Duration, usize)> {
        let due = |(&handle, client): (&usize, &Client)| {
            let is_live = self.all.iter().any(|answer| {
                answer.connection == handle && !answer.arrived_at.is_empty() && answer.ended_at.is_none()
            });
            let at = client.detector.filter(|_| is_live)?.due_ns()?;
            Some((Duration::from_nanos(at), handle))
        };
        self.clients.iter().filter_map(due).min()
    }

    /// The client of this connection probes now.
    pub fn note_probe(&mut self, handle: usize) {
        let client = self.clients.get_mut(&handle);
        if let Some(detector) = client.and_then(|client| client.detector.as_mut()) {
            detector.note_probe();
        }
    }

    /// Sends so many bytes, which the server must acknowledge.
    pub fn send_control(&mut self, handle: usize, bytes: usize, connection: &mut Connection) {
        let control = self.clients.get(&handle).and_then(|client| client.control);
        if let Some(control) = control.filter(|_| bytes > 0) {
            let _ = connection.send_stream(control).write(&vec![0; bytes]);
        }
    }

    /// The next token of an answer is due at the server.
    pub fn handle_due(&mut self, answer: usize) -> Option<usize> {
        let record = &mut self.all[answer];
        record.due += 1;
        if record.shape.every.is_zero() {
            record.due = record.shape.tokens;
        } else if record.due < record.shape.tokens && record.stopped_at.is_none() {
            let next = record.due_at(record.due);
            self.due.extend(next.map(|at| (at, answer)));
        }
        self.all[answer].server.map(|(handle, _)| handle)
    }

    /// Writes what is due and fits.
    pub fn write(&mut self, answer: usize, connection: &mut Connection) {
        let record = &mut self.all[answer];
        let Some((_, stream)) = record.server else { return };
        if record.stopped_at.is_some() || record.is_finished {
            return;
        }
        let goal = record.due * record.shape.token_bytes;
        while record.written < goal {
            let end = goal.min(record.written + 16 * 1024);
            let bytes: Vec<u8> = (record.written..end).map(|offset| byte(answer, offset)).collect();
            match connection.send_stream(stream).write(&bytes) {
                Ok(written) => record.written += written,
                Err(WriteError::Blocked) => return,
                // The event that says so comes in a moment.
                Err(WriteError::Stopped(_)) => return,
                Err(WriteError::ClosedStream) if record.stopped_at.is_some() => return,
                Err(WriteError::ClosedStream) => {
                    return record.note_wrong(format!("answer {answer}: no stream to write to"));
                }
            }
        }
        if record.written == record.bytes() {
            record.is_finished = connection.send_stream(stream).finish().is_ok();
        }
    }

    /// Takes what happened to a connection of this side.
    pub fn handle_event(
        &mut self,
        now: Duration,
        role: Role,
        handle: usize,
        event: Event,
        connection: &mut Connection,
    ) {
        match (role, event) {
            (Role::Client, Event::Connected) => {
                if !connection.accepted_0rtt() {
                    self.repeat_early(handle);
                }
                self.open_waiting(handle, connection);
            }
            (Role::Server, Event::Connected) => {
                if let Some(control) = connection.streams().open(Dir::Uni) {
                    let _ = connection.send_stream(control).write(&CONTROL);
                }
            }
            (role, Event::ConnectionLost { reason }) => self.lose(role, handle, &reason.to_string()),
            (role, Event::Stream(event)) => self.handle_stream(now, role, handle, event, connection),
            _ => {}
        }
    }

    fn handle_stream(
        &mut self,
        now: Duration,
        role: Role,
        handle: usize,
        event: StreamEvent,
        connection: &mut Connection,
    ) {
        match (role, event) {
            (_, StreamEvent::Opened { dir: Dir::Uni }) => {
                while let Some(stream) = connection.streams().accept(Dir::Uni) {
                    read(connection, stream, |_| {});
                }
            }
            (Role::Server, StreamEvent::Opened { dir: Dir::Bi }) => {
                while let Some(stream) = connection.streams().accept(Dir::Bi) {
                    self.requests.insert((handle, stream), Vec::new());
                    self.read_request(now, handle, stream, connection);
                }
            }
            (_, StreamEvent::Readable { id }) if id.dir() == Dir::Uni => {
                read(connection, id, |_| {});
            }
            (Role::Server, StreamEvent::Readable { id }) => self.read_request(now, handle, id, connection),
            (Role::Client, StreamEvent::Readable { id }) => self.read_answer(now, handle, id, connection),
            (Role::Server, StreamEvent::Writable { id }) => {
                if let Some(&answer) = self.heard.get(&(handle, id)) {
                    self.write(answer, connection);
                }
            }
            (Role::Server, StreamEvent::Stopped { id, error_code }) => {
                let _ = connection.send_stream(id).reset(error_code);
                if let Some(&answer) = self.heard.get(&(handle, id)) {
                    self.all[answer].stopped_at.get_or_insert(now);
                } else {
                    // It was stopped before its request was read: it will not be answered.
                    self.stopped_unheard.insert((handle, id));
                }
            }
            (Role::Client, StreamEvent::Available { .. }) => self.open_waiting(handle, connection),
            _ => {}
        }
    }

    fn open_waiting(&mut self, handle: usize, connection: &mut Connection) {
        let Some(client) = self.clients.get_mut(&handle) else { return };
        client.open_control(connection);
        while let Some(&answer) = client.waiting.front() {
            let Some(stream) = connection.streams().open(Dir::Bi) else { return };
            client.waiting.pop_front();
            let record = &mut self.all[answer];
            let mut request = (answer as u32).to_be_bytes().to_vec();
            request.resize(record.shape.request_bytes.max(4), 0);
            let written = connection.send_stream(stream).write(&request);
            if written != Ok(request.len()) || connection.send_stream(stream).finish().is_err() {
                record.note_wrong(format!("the request was not written: {written:?}"));
            }
            record.stream = Some(stream);
            self.at_client.insert((handle, stream), answer);
        }
    }

    /// The server did not take early data: everything is asked for again.
    fn repeat_early(&mut self, handle: usize) {
        let Some(client) = self.clients.get_mut(&handle) else { return };
        client.control = None;
        for (number, answer) in self.all.iter_mut().enumerate() {
            // Handles come again: what has ended belongs to an earlier connection.
            if answer.connection == handle && answer.ended_at.is_none() && answer.stream.take().is_some() {
                client.waiting.push_back(number);
            }
        }
        self.at_client.retain(|(connection, _), _| *connection != handle);
    }

    fn read_request(&mut self, now: Duration, handle: usize, stream: StreamId, connection: &mut Connection) {
        let Some(request) = self.requests.get_mut(&(handle, stream)) else { return };
        let is_ended = read(connection, stream, |bytes| request.extend_from_slice(bytes));
        let number = request.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) as usize);
        let (Some(answer), true) = (number.filter(|number| *number < self.all.len()), is_ended) else {
            return;
        };
        self.requests.remove(&(handle, stream));
        let record = &mut self.all[answer];
        record.heard_at = Some(now);
        record.was_early = connection.is_handshaking();
        record.server = Some((handle, stream));
        record.stopped_at = self.stopped_unheard.remove(&(handle, stream)).then_some(now);
        self.heard.insert((handle, stream), answer);
        self.due.push((now + record.shape.thinks, answer));
    }

    fn read_answer(&mut self, now: Duration, handle: usize, stream: StreamId, connection: &mut Connection) {
        let Some(&answer) = self.at_client.get(&(handle, stream)) else { return };
        let record = &mut self.all[answer];
        let before = record.received;
        let mut wrong = None;
        let is_ended = read(connection, stream, |bytes| {
            let is_right = |(index, got): (usize, &u8)| *got == byte(answer, record.received + index);
            if !bytes.iter().enumerate().all(is_right) {
                wrong = Some(format!("a wrong byte of answer {answer} after {}", record.received));
            }
            record.received += bytes.len();
        });
        record.arrived_at.resize(record.received / record.shape.token_bytes, now);
        let detector = self.clients.get_mut(&handle).and_then(|client| client.detector.as_mut());
        if let Some(detector) = detector.filter(|_| record.received > before) {
            detector.note_arrival(now.as_nanos() as u64);
        }
        let (received, expected) = (record.received, record.bytes());
        if received > expected || (is_ended && received != expected) {
            wrong = Some(format!("answer {answer} has {received} of {expected} bytes"));
        }
        if let Some(wrong) = wrong {
            record.note_wrong(wrong);
        }
        if is_ended {
            record.ended_at = Some(now);
        }
    }

    fn lose(&mut self, role: Role, handle: usize, reason: &str) {
        let mut of: Vec<&mut Answer> = self.all.iter_mut().collect();
        of.retain(|answer| match role {
            Role::Client => answer.connection == handle && answer.ended_at.is_none(),
            Role::Server => answer.server.is_some_and(|(server, _)| server == handle) && !answer.is_finished,
        });
        for answer in of {
            answer.note_wrong(format!("{role:?}: the connection was lost: {reason}"));
        }
    }
}

impl Client {
    fn open_control(&mut self, connection: &mut Connection) {
        if self.control.is_none() {
            self.control = connection.streams().open(Dir::Uni);
            if let Some(control) = self.control {
                let _ = connection.send_stream(control).write(&CONTROL);
            }
        }
    }
}

/// Reads what is there, in order. Returns whether the stream has ended (FIN).
fn read(connection: &mut Connection, stream: StreamId, mut take: impl FnMut(&[u8])) -> bool {
    let mut recv = connection.recv_stream(stream);
    let Ok(mut chunks) = recv.read(true) else { return false };
    let mut is_ended = false;
    loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => take(&chunk.bytes),
            Ok(None) => {
                is_ended = true;
                break;
            }
            Err(_) => break,
        }
    }
    // Credit leaves with whatever is sent next: the simulation asks every connection after each event.
    let _ = chunks.finalize();
    is_ended
}
