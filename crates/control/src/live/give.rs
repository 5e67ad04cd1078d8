//! Finds the process that has a volume open, and gives it orders.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::ask::{Answer, is_timeout, reachable};
use super::descriptor;
use super::place::{Served, served};
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::order::{Order, Step, Watch};
use crate::sockets::ask;
use crate::target::Stream;

/// The capacity in bytes of the pipe between the server and this process.
const PIPE_BYTES: usize = 1 << 20;
/// How often the client of an order gets its progress. The server checks as often whether the
/// client still waits.
pub(super) const STEP_PERIOD: Duration = Duration::from_millis(100);

/// Finds the mount or server of `path`: an image, a cache, or a folder on a mount.
pub fn find(path: &Path) -> Result<Option<(PathBuf, Answer)>> {
    let full = closing::full_name(path).context(|| path.display().to_string())?;
    if full.is_dir() {
        return Ok(served(path)?.map(|Served { socket, answer, .. }| (socket, answer)));
    }
    let found = reachable().into_iter().find(|(_, answer)| answer.subject.serves(&full));
    if found.as_ref().is_some_and(|(_, answer)| answer.is_closing) {
        // The volume is free when the server has closed it.
        closing::until_closed(&full);
        return Ok(None);
    }
    Ok(found)
}

/// Finds a mount or server as [`find`] does, but fails if there is none.
pub fn must_find(path: &Path) -> Result<(PathBuf, Answer)> {
    let none = || {
        let path = path.display();
        Failure::new(Exit::Failure, format!("{path}: no mount or server of this user has it open"))
    };
    find(path)?.ok_or_else(none)
}

/// Sends a message to the cache of the server at `socket`, and waits until the cache has obeyed it.
pub fn tell_cache(socket: &Path, message: &str) -> Result<()> {
    let text =
        ask(socket, &format!("cache {message}"), None).context(|| socket.display().to_string())?;
    let answer: Value = serde_json::from_str(&text).context(|| "the answer")?;
    match answer["error"].as_str() {
        Some(error) => Err(Failure::new(Exit::Failure, error)),
        None => Ok(()),
    }
}

/// Gives an order to the mount that listens at `socket`, and waits until it is carried out. When
/// `stop` is set, the order ends as soon as possible.
pub fn give(socket: &Path, order: &Order, stop: &AtomicBool, watch: Watch<'_>) -> Result<Value> {
    let name = || socket.display().to_string();
    let mut stream = UnixStream::connect(socket).context(name)?;
    stream.write_all(&line_of(order)?).context(name)?;
    answer(&stream, stop, watch).context(name)?
}

/// Gives an order with a stream. The server gets one end of a pipe; this process copies between the
/// other end and the stream. So the server never reads or writes a file of its own mount, which
/// could block the server.
pub fn give_with_stream(socket: &Path, order: &Order, stream: Stream<'_>) -> Result<Value> {
    let name = || socket.display().to_string();
    let server = UnixStream::connect(socket).context(name)?;
    let (reader, writer) = std::io::pipe().context(|| "a pipe")?;
    // A failure of this call does no harm: a larger pipe only saves switches between the processes.
    let _ = rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES);
    let line = line_of(order)?;
    let given = match &stream {
        Stream::None => Ok(()),
        Stream::In(_) => descriptor::send(&server, &line, reader.as_fd()),
        Stream::Out(_) => descriptor::send(&server, &line, writer.as_fd()),
    };
    given.context(name)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answered = scope.spawn(|| answer(&server, &stop, &mut |_| true));
        let copied = match stream {
            Stream::None => Ok(()),
            Stream::In(input) => {
                drop(reader);
                copy(input, &mut { writer })
            }
            Stream::Out(output) => {
                drop(writer);
                copy(&mut { reader }, output)
            }
        };
        let answered = answered.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic")));
        match copied {
            // The server closed its end, and its answer has the reason.
            Err(error)
                if error.kind() == ErrorKind::BrokenPipe
                    && matches!(order, Order::Receive { .. }) => {}
            copied => copied.context(|| "the stream")?,
        }
        answered.context(name)?
    })
}

/// Copies until the input ends.
fn copy(input: &mut dyn Read, output: &mut dyn Write) -> std::io::Result<()> {
    let mut piece = vec![0; PIPE_BYTES];
    loop {
        match input.read(&mut piece) {
            Ok(0) => return output.flush(),
            Ok(len) => output.write_all(&piece[..len])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the line that gives an order.
fn line_of(order: &Order) -> Result<Vec<u8>> {
    let text = serde_json::to_string(order).context(|| "the order")?;
    Ok(format!("order {text}\n").into_bytes())
}

/// Reads the server's answers to an order until the order is done.
fn answer(
    stream: &UnixStream,
    stop: &AtomicBool,
    watch: Watch<'_>,
) -> std::io::Result<Result<Value>> {
    stream.set_read_timeout(Some(STEP_PERIOD))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    let mut is_stopped = false;
    loop {
        if stop.load(Ordering::Relaxed) && !is_stopped {
            is_stopped = true;
            stream.shutdown(std::net::Shutdown::Write)?;
        }
        match answers.read_line(&mut line) {
            Ok(0) => {
                let what = "the mount ended before it answered";
                return Ok(Err(Failure::new(Exit::Failure, what)));
            }
            Ok(_) => {}
            // The part of a line that was read so far stays in `line`.
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        }
        let answer: Value = serde_json::from_str(&line)?;
        line.clear();
        if let Some(error) = answer["error"].as_str() {
            return Ok(Err(Failure::new(Exit::of(&answer["exit"]), error)));
        }
        match answer.get("step").map(Step::deserialize) {
            Some(step) => drop(watch(&step?)),
            None => return Ok(Ok(answer["done"].clone())),
        }
    }
}
