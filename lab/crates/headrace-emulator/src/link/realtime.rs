//! Makes a thread punctual: neither the machine's other work delays it, nor the sleep of its processors.
//!
//! In: the calling thread. Out: what the kernel refused. With both cores of a machine busy the 99th percentile
//! of a wake-up is milliseconds late without this, and a fraction of one with it.

use std::fs::{File, OpenOptions};
use std::io::{Error, Write};

/// The kernel is told here which delay of a wake-up can be borne, as long as the file is open.
const WAKE_UP_LATENCY: &str = "/dev/cpu_dma_latency";

/// The priority: above ordinary real-time work, below the kernel's own threads.
const PRIORITY: i32 = 50;

/// Asks for real-time priority for this thread, and for the process's memory to be locked. Returns what was refused.
pub fn enter() -> Vec<String> {
    let mut refused = Vec::new();
    let mut check = |what: &str, result: i32| {
        if result != 0 {
            refused.push(format!("{what}: {}", Error::last_os_error()));
        }
    };
    let priority = libc::sched_param { sched_priority: PRIORITY };
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: plain system calls; `priority` and `unlimited` are valid for them. 0 is the calling thread.
    unsafe {
        check("SCHED_FIFO", libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority));
        check("timer slack", libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0));
        // Under a limit, locked memory would make later allocations fail, so none is locked then. Pages are locked when they
        // are first used: stacks of eight megabytes need not be in memory.
        let result = match libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) {
            0 => libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT),
            refused => refused,
        };
        check("locked memory", result);
    }
    refused
}

/// The machine's processors do not sleep while this lives. Each wake-up of a sleeping one costs some 0.1 ms in a
/// virtual machine, and a first token has a dozen. `None` where the kernel does not offer this, or not to us.
pub struct Awake(#[expect(dead_code, reason = "it is open")] File);

impl Awake {
    pub fn keep() -> Option<Self> {
        let mut file = OpenOptions::new().write(true).open(WAKE_UP_LATENCY).ok()?;
        file.write_all(&0_i32.to_ne_bytes()).ok()?;
        Some(Self(file))
    }
}
