//! The benchmark's own Redis: started on a chosen core, on a free port of loopback, without persistence. It ends with
//! the benchmark, however that ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::server::{cpu, free_port, pinned};

const START_MAX: Duration = Duration::from_secs(10);

/// A running Redis.
pub(crate) struct Database {
    pub(crate) port: u16,
    process: Child,
    folder: PathBuf,
}

/// The work of Redis so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// CPU time of all its threads.
    pub(crate) cpu: Duration,
    /// Calls of scripts.
    pub(crate) calls: u64,
    /// The time of these calls.
    pub(crate) call_micros: u64,
}

impl Database {
    /// Starts it on `core` and waits until it answers.
    pub(crate) fn start(core: &str) -> Result<Database, String> {
        let port = free_port()?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut command = pinned(core);
        command.args(["redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"]);
        command.arg(port.to_string()).arg("--dir").arg(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().map_err(|error| format!("setpriv, taskset: {error}"))?;
        let database = Database { port, process, folder };
        let start = Instant::now();
        while let Err(error) = database.connection() {
            if start.elapsed() > START_MAX {
                return Err(format!("redis-server (apt-get install redis-server): {error}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(database)
    }

    pub(crate) fn connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(format!("redis://{}", self.address()))?.get_connection()
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its work so far.
    pub(crate) fn work(&self) -> Result<Work, String> {
        let info = self.connection().and_then(|mut connection| {
            redis::cmd("INFO").arg("commandstats").query::<String>(&mut connection)
        });
        let info = info.map_err(|error| format!("INFO: {error}"))?;
        let mut work = Work { cpu: cpu(self.process.id()), ..Work::default() };
        let lines = info
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_evalsha:").or(line.strip_prefix("cmdstat_eval:")));
        for figures in lines {
            let figure = |name: &str| {
                let text = figures.split(',').find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
                text.and_then(|text| text.parse::<u64>().ok()).ok_or(format!("commandstats: {figures}"))
            };
            work.calls += figure("calls")?;
            work.call_micros += figure("usec")?;
        }
        Ok(work)
    }
}

impl Work {
    /// The work since `before`.
    pub(crate) fn since(self, before: Work) -> Work {
        Work {
            cpu: self.cpu.saturating_sub(before.cpu),
            calls: self.calls - before.calls,
            call_micros: self.call_micros - before.call_micros,
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // neither can fail for a child that was not waited for yet
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
