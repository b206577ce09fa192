//! A thread that neither the machine's other work delays, nor its sleep.
//!
//! In: the calling thread. Out: what the kernel refused. With both cores of a machine busy the 99th percentile
//! of a wake-up is milliseconds late without this, and a fraction of one with it.

use std::fs::{File, OpenOptions};
use std::io::{Error, Write};

/// Where the kernel is told which delay of a wake-up is bearable, as long as the file is open.
const WAKE_UP_LATENCY: &str = "/dev/cpu_dma_latency";

/// Above ordinary real-time work, below the kernel's own threads.
const PRIORITY: i32 = 50;

/// Real-time priority for this thread, and all memory of the process locked. Empty when all was granted.
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
        // Under a limit, locked memory makes later allocations fail: better none. Pages are locked when they
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
/// virtual machine, and a first token has a dozen. None where the kernel does not offer it, or not to us.
pub struct Awake(#[expect(dead_code, reason = "it is open")] File);

impl Awake {
    pub fn keep() -> Option<Self> {
        let mut file = OpenOptions::new().write(true).open(WAKE_UP_LATENCY).ok()?;
        file.write_all(&0_i32.to_ne_bytes()).ok()?;
        Some(Self(file))
    }
}
