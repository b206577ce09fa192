//! The packet log: one record of 40 bytes for each packet, and for each copy.
//!
//! In: what the emulator did. Out: a file, written by a thread of ordinary priority. `headrace_lab.link.log`
//! reads it. The emulator never waits for the file: what the writer cannot keep up with is counted.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::network::{Direction, Reason};

/// The first bytes of the file; the last but one is the version.
const MAGIC: &[u8; 8] = b"hrlink1\n";
const RECORD: usize = 40;
/// How many records are handed over at once.
const BATCH: usize = 1024;
/// How many batches may wait for the writer.
const WAITING: usize = 64;

/// One packet, in the order of the file; little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub in_ns: u64,
    /// 0: the packet was not to come out.
    pub due_ns: u64,
    /// 0: the packet did not come out.
    pub out_ns: u64,
    pub index: u32,
    /// How many restarts came before.
    pub round: u16,
    pub length: u16,
    pub source_port: u16,
    pub destination_port: u16,
    pub direction: Direction,
    pub protocol: u8,
    /// `None`: it was delivered.
    pub dropped: Option<Reason>,
    pub is_copy: bool,
}

impl Record {
    fn bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[0..8].copy_from_slice(&self.in_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.due_ns.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.out_ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.index.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.round.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.source_port.to_le_bytes());
        bytes[34..36].copy_from_slice(&self.destination_port.to_le_bytes());
        bytes[36] = self.direction as u8;
        bytes[37] = self.protocol;
        // 0 means delivered.
        bytes[38] = self.dropped.map_or(0, |reason| reason as u8 + 1);
        bytes[39] = u8::from(self.is_copy);
        bytes
    }
}

enum Message {
    Records(Vec<u8>),
    /// It is called when everything before it is in the file.
    Flush(Box<dyn FnOnce() + Send>),
}

pub struct Log {
    batch: Vec<u8>,
    sender: SyncSender<Message>,
    writer: JoinHandle<io::Result<()>>,
    left: u64,
    logged: u64,
    unlogged: u64,
}

impl Log {
    pub fn create(path: &Path, max_packets: u64) -> io::Result<Self> {
        let mut file = File::create(path)?;
        file.write_all(MAGIC)?;
        let (sender, receiver) = sync_channel(WAITING);
        let writer = std::thread::Builder::new().name("link log".into()).spawn(|| write(file, receiver))?;
        let batch = Vec::with_capacity(BATCH * RECORD);
        Ok(Self { batch, sender, writer, left: max_packets, logged: 0, unlogged: 0 })
    }

    pub fn record(&mut self, record: &Record) {
        if self.left == 0 {
            self.unlogged += 1;
            return;
        }
        self.left -= 1;
        self.batch.extend_from_slice(&record.bytes());
        if self.batch.len() == BATCH * RECORD {
            self.hand_over();
        }
    }

    /// Returns the packets that were written, and those that were not.
    pub fn counts(&self) -> (u64, u64) {
        (self.logged + (self.batch.len() / RECORD) as u64, self.unlogged)
    }

    /// Calls back when everything until now is in the file, or at once when the writer cannot take the call.
    pub fn flush(&mut self, done: Box<dyn FnOnce() + Send>) {
        self.hand_over();
        if let Err(
            TrySendError::Full(Message::Flush(done)) | TrySendError::Disconnected(Message::Flush(done)),
        ) = self.sender.try_send(Message::Flush(done))
        {
            done();
        }
    }

    /// Waits until everything is in the file. It is for the end, not for the loop.
    pub fn finish(mut self) -> io::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let sent = self.sender.send(Message::Records(batch));
        drop(self.sender);
        let written = self.writer.join().unwrap_or_else(|_| Err(io::Error::other("its thread died")));
        written.and_then(|()| sent.map_err(|_| io::Error::other("its thread ended early")))
    }

    fn hand_over(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH * RECORD));
        let records = (batch.len() / RECORD) as u64;
        match self.sender.try_send(Message::Records(batch)) {
            Ok(()) => self.logged += records,
            Err(_) => self.unlogged += records,
        }
    }
}

fn write(mut file: File, receiver: Receiver<Message>) -> io::Result<()> {
    for message in receiver {
        match message {
            Message::Records(records) => file.write_all(&records)?,
            Message::Flush(done) => done(),
        }
    }
    file.flush()
}
