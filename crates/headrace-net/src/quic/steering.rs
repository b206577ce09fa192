//! Which worker a datagram belongs to.
//!
//! A connection belongs to the worker whose number is in the first byte of its connection ID, modulo the number of
//! workers: a classic BPF program in the kernel reads it there, so that a client that moves to another address
//! still reaches its worker. Where the kernel refuses the program, a worker that receives a datagram of another's
//! forwards it (`quic/worker_socket.rs`).

use std::io;
use std::net::UdpSocket;

use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use rand::RngExt;

/// The length of our connection IDs; the first byte carries the worker's number.
const CID_LENGTH: usize = 8;

/// Attaches the program that chooses a socket by the connection ID. It belongs to the whole group of sockets:
/// attach it once, after the last one is bound, so that its index is the worker's number.
///
/// # Errors
/// When the kernel does not take it.
#[cfg(target_os = "linux")]
pub fn attach_steering(socket: &UdpSocket, workers: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // RFC 8999: a long header has the connection ID's first byte at offset 6, a short header at offset 1.
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        op(LOAD_BYTE, 0, 0, 0),
        op(JUMP_IF_SET, 0, 2, 0x80),
        op(LOAD_BYTE, 0, 0, 6),
        op(JUMP, 0, 0, 1),
        op(LOAD_BYTE, 0, 0, 1),
        op(MODULO, 0, 0, workers as u32),
        op(RETURN_A, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` and the program it points to outlive the call, which copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
pub fn attach_steering(_: &UdpSocket, _: usize) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Which worker owns the connection of this datagram; `None` when the datagram is too short to say.
pub fn owner(datagram: &[u8], workers: usize) -> Option<usize> {
    let offset = if datagram.first()? & 0x80 != 0 { 6 } else { 1 };
    datagram.get(offset).map(|&byte| usize::from(byte) % workers)
}

/// Makes the connection IDs of one worker: they are random, except for the first byte, which is the worker's number
/// modulo the number of workers.
#[derive(Debug)]
pub struct WorkerCids {
    pub worker: usize,
    pub workers: usize,
}

impl ConnectionIdGenerator for WorkerCids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut cid = [0; CID_LENGTH];
        rand::rng().fill(&mut cid);
        let rounds = 256 / self.workers;
        cid[0] = ((usize::from(cid[0]) % rounds) * self.workers + self.worker) as u8;
        ConnectionId::new(&cid)
    }

    fn cid_len(&self) -> usize {
        CID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_id_names_its_worker() {
        for workers in [1, 2, 3, 7, 64] {
            for worker in 0..workers {
                let mut cids = WorkerCids { worker, workers };
                for _ in 0..20 {
                    let cid = cids.generate_cid();
                    assert_eq!(owner(&[&[0x40], &cid[..]].concat(), workers), Some(worker));
                    let long = [&[0xc0, 0, 0, 0, 1, 8], &cid[..]].concat();
                    assert_eq!(owner(&long, workers), Some(worker));
                }
            }
        }
        assert_eq!(owner(&[], 4), None);
        assert_eq!(owner(&[0xc0, 0, 0], 4), None);
    }
}
