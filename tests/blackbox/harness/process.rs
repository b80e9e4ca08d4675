//! A child process: what it has written so far, signals, its end. Killed when dropped.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::eventually;

/// A running (or ended) program and all that it has said.
pub struct Process {
    child: Child,
    /// Both streams. A file, not pipes: whatever was written before something that a test has seen can be read.
    output: File,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        Self::spawn_with(command.stdin(Stdio::null()))
    }

    /// With something to read, which [`input`](Self::input) writes.
    pub fn spawn_with_input(command: &mut Command) -> Self {
        Self::spawn_with(command.stdin(Stdio::piped()))
    }

    /// Writes a line for it to read.
    pub fn input(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("it was given something to read");
        writeln!(stdin, "{line}").expect("it still reads");
    }

    fn spawn_with(command: &mut Command) -> Self {
        let output = tempfile::tempfile().expect("a file can be made");
        let stream = || Stdio::from(output.try_clone().expect("a file can be shared"));
        let child = command
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .unwrap_or_else(|error| panic!("{:?} does not start: {error}", command.get_program()));
        Self { child, output }
    }

    /// Its number among the processes.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Every whole line that it has written so far, on either stream.
    pub fn output(&self) -> Vec<String> {
        let length = self.output.metadata().expect("the file is open").len();
        let mut bytes = vec![0; usize::try_from(length).expect("it fits into memory")];
        self.output.read_exact_at(&mut bytes, 0).expect("nobody shortens it");
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
        String::from_utf8_lossy(&bytes[..whole]).lines().map(str::to_owned).collect()
    }

    /// How many lines hold this text.
    pub fn lines_with(&self, text: &str) -> usize {
        self.output().iter().filter(|line| line.contains(text)).count()
    }

    /// The most memory that it had since its start, or since [`Process::forget_memory_peak`], in bytes.
    pub fn memory_peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the process is ours");
        let peak =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux reports the peak");
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        kib * 1024
    }

    /// The peak is what it has now.
    pub fn forget_memory_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").expect("the process is ours");
    }

    /// Memory that is its own, in bytes.
    pub fn anonymous_bytes(&self) -> u64 {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()));
        let rollup = rollup.expect("the process is ours");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("Linux reports it");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib * 1024
    }

    /// User and system time of all its threads, ever.
    pub fn cpu_time(&self) -> Duration {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the process is ours");
        let (_, after_name) = stat.rsplit_once(") ").expect("Linux reports the name");
        let ticks =
            after_name.split(' ').skip(11).take(2).map(|field| field.parse::<u32>().expect("a number"));
        // USER_HZ is 100 on every architecture that has servers.
        Duration::from_millis(10) * ticks.sum::<u32>()
    }

    /// How many of its threads have a name that begins so.
    pub fn threads(&self, name: &str) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let comms = threads
            .expect("the process is ours")
            .map(|thread| thread.map(|thread| thread.path().join("comm")));
        let names = comms.map(|comm| std::fs::read_to_string(comm.expect("the process is ours")));
        // One that has just ended has no name any more.
        names.flatten().filter(|known| known.starts_with(name)).count()
    }

    /// It has a handler for this signal by now.
    pub fn catches(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let caught = status.expect("the process is ours");
        let caught = caught.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
        let caught = u64::from_str_radix(caught.expect("Linux reports the signals"), 16).expect("a number");
        caught >> (signal.as_raw() - 1) & 1 == 1
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is ours");
    }

    /// Ends it at once, as a crash would, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("the process is ours");
        self.child.wait().expect("the process is ours");
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the process is ours")
    }

    /// Waits for its end. Returns the exit code; panics when a signal ended it.
    pub fn exit_code(&mut self) -> i32 {
        let status = eventually("the process to end", || self.ended());
        status.code().unwrap_or_else(|| panic!("ended by a signal: {status}\n{}", self.output().join("\n")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("--- output of the process:\n{}\n---", self.output().join("\n"));
        }
    }
}
