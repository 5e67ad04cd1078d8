//! The volume mounted by a second process of this program, used with ordinary system calls.
//!
//! # Failure
//!
//! However the demo ends, dropping [`Mounted`] asks the process to unmount and waits for it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::access::Access;
use crate::exit::{Context, Exit, Failure, Result};

/// The longest wait for the mount to appear, and for the last commit at the end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A mounted volume.
pub(super) struct Mounted {
    image: PathBuf,
    target: PathBuf,
    /// The server. `None` when the server has ended, or when it keeps running after the demo.
    server: Option<Child>,
    /// The file that `append` and `read` use. It stays open, because opening it for each piece
    /// would distort the measurement.
    open: Option<(String, File)>,
}

impl Mounted {
    /// Mounts the image. The inner error says in a few words why mounting is not possible here.
    pub(super) fn new(image: &Path, target: &Path) -> Result<Result<Self, String>> {
        if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            return Ok(Err(format!("/dev/fuse: {error}")));
        }
        std::fs::create_dir_all(target).context(|| target.display().to_string())?;
        let started = start(image, target)?;
        Ok(started.map(|server| Self {
            image: image.to_owned(),
            target: target.to_owned(),
            server: Some(server),
            open: None,
        }))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.target.join(path)
    }

    fn file(&mut self, path: &str) -> Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| open != path) {
            self.open = None;
            let file = OpenOptions::new().read(true).write(true).open(self.path(path));
            self.open = Some((path.to_owned(), file.context(|| path)?));
        }
        let (_, file) = self.open.as_ref().expect("opened above");
        Ok(file)
    }

    /// Unmounts, and waits until everything is durable.
    fn stop(&mut self) -> Result<()> {
        self.open = None;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let pid = Pid::from_child(&server);
        kill_process(pid, Signal::TERM).context(|| "ending the mount")?;
        let status = server.wait().context(|| "ending the mount")?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::new(Exit::Failure, format!("the mount ended with an error: {}", self.log())))
    }

    fn log(&self) -> String {
        last_words(&self.image)
    }
}

/// Starts the server and waits until the mount can be seen.
fn start(image: &Path, target: &Path) -> Result<Result<Child, String>> {
    let program = std::env::current_exe().context(|| "finding this program")?;
    let log = File::create(log_path(image)).context(|| "the log of the mount")?;
    let mut server = Command::new(program)
        .arg("mount")
        .arg("--foreground")
        .arg(image)
        .arg(target)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // Ctrl-C must reach only the demo, which unmounts in good order.
        .process_group(0)
        .spawn()
        .context(|| "starting the mount")?;
    let outside = target.parent().and_then(|parent| parent.metadata().ok());
    let outside = outside.map(|metadata| metadata.dev());
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        if server.try_wait().context(|| "the mount")?.is_some() {
            return Ok(Err(last_words(image)));
        }
        if target.metadata().is_ok_and(|metadata| Some(metadata.dev()) != outside) {
            return Ok(Ok(server));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = server.kill();
    let _ = server.wait();
    Ok(Err("the mount did not appear".to_owned()))
}

fn log_path(image: &Path) -> PathBuf {
    image.with_extension("log")
}

/// Returns the last line of the server's log. A verb that fails prints the reason in its last line.
fn last_words(image: &Path) -> String {
    let text = std::fs::read_to_string(log_path(image)).unwrap_or_default();
    let line = text.lines().last().unwrap_or("it said nothing");
    line.trim_start_matches("buttress: ").to_owned()
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The demo ends with an error already, or the server has been stopped before.
        let _ = self.stop();
    }
}

impl Access for Mounted {
    fn mkdir(&mut self, path: &str) -> Result<()> {
        std::fs::create_dir(self.path(path)).context(|| path)
    }

    fn write(&mut self, path: &str, content: &[u8]) -> Result<()> {
        std::fs::write(self.path(path), content).context(|| path)
    }

    fn append(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()> {
        self.file(path)?.write_all_at(content, offset).context(|| path)
    }

    fn read(&mut self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let file = self.file(path)?;
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset + filled as u64;
            match file.read_at(&mut buffer[filled..], at).context(|| path)? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        std::fs::rename(self.path(from), self.path(to)).context(|| from)
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        std::fs::remove_file(self.path(path)).context(|| path)
    }

    fn count(&mut self, path: &str) -> Result<usize> {
        let entries = std::fs::read_dir(self.path(path)).context(|| path)?;
        entries.map(|entry| entry.context(|| path)).try_fold(0, |count, entry| {
            entry?;
            Ok(count + 1)
        })
    }

    fn sync(&mut self) -> Result<()> {
        self.open = None;
        let dir = File::open(&self.target).context(|| "the mount")?;
        // The first call writes the kernel's dirty data to the server. Only the second call asks
        // the server to make the data durable.
        rustix::fs::syncfs(&dir).context(|| "syncing the mount")?;
        dir.sync_all().context(|| "syncing the mount")
    }

    fn reopen(&mut self) -> Result<()> {
        self.stop()?;
        match start(&self.image, &self.target)? {
            Ok(server) => {
                self.server = Some(server);
                Ok(())
            }
            Err(why) => Err(Failure::new(Exit::Failure, format!("mounting again: {why}"))),
        }
    }

    fn keep(&mut self) -> bool {
        self.open = None;
        self.server = None;
        true
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.stop()
    }
}
