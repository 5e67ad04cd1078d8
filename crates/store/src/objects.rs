//! Stores of the crate `object_store`: folders, and the clients that `clouds` makes.
//!
//! # Invariants
//!
//! - **B1** The client repeats nothing by itself. The caller repeats requests that
//!   may be repeated.
//! - **B2** A folder's objects are durable when the call returns.

use std::ops::Range;
use std::path::Path as HostPath;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::interrupt;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::{Builder, Runtime};

use crate::{Meta, Store, StoreError};

/// The time that one request may take, and the additional time for each MiB of the request.
const TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT_PER_MIB: Duration = Duration::from_secs(4);
/// Requests of one call that run at once.
const AT_ONCE: usize = 32;

/// The code of a server for a missing bucket or container, and the message for the user. The client
/// has no error of its own for a list of a missing bucket.
const NO_BUCKET: (&str, &str) = ("NoSuchBucket", "there is no such bucket");
const NO_CONTAINER: (&str, &str) = ("ContainerNotFound", "there is no such container");

/// A store, and the runtime on which its requests run.
#[derive(Debug)]
pub struct Objects {
    title: String,
    store: Arc<dyn ObjectStore>,
    /// `None` only while this value is dropped.
    runtime: Option<Runtime>,
}

impl Objects {
    /// Opens the root directory of this machine as a store: names are absolute paths without their
    /// first slash.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if no thread can be started.
    pub fn host() -> Result<Self, StoreError> {
        let store = LocalFileSystem::new().with_fsync(true);
        Self::new("file://".to_owned(), Arc::new(store))
    }

    pub(crate) fn new(title: String, store: Arc<dyn ObjectStore>) -> Result<Self, StoreError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("remote-io")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Refused(error.to_string()))?;
        Ok(Self { title, store, runtime: Some(runtime) })
    }

    /// A write fails with `NotFound` only if the bucket does not exist. Repeating the write does
    /// not help.
    fn no_bucket(&self, error: StoreError) -> StoreError {
        let missing = if self.title.starts_with("az:") { NO_CONTAINER } else { NO_BUCKET };
        match error {
            StoreError::NotFound => StoreError::Refused(missing.1.to_owned()),
            other => other,
        }
    }

    /// Runs one request, with the time limit for its number of bytes.
    fn run<T>(
        &self,
        bytes: u64,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, StoreError> {
        let Some(runtime) = &self.runtime else {
            return Err(StoreError::Refused("the store is closed".to_owned()));
        };
        runtime.block_on(within(bytes, request))
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store for Objects {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        let options = PutOptions::from(PutMode::Create);
        let (path, len) = (path(name)?, body.len() as u64);
        self.run(len, self.store.put_opts(&path, body.into(), options))
            .map(drop)
            .map_err(|error| self.no_bucket(error))
    }

    fn put(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        let (path, len) = (path(name)?, body.len() as u64);
        self.run(len, self.store.put(&path, body.into()))
            .map(drop)
            .map_err(|error| self.no_bucket(error))
    }

    fn get(&self, name: &str) -> Result<Bytes, StoreError> {
        let path = path(name)?;
        self.run(64 << 20, async { self.store.get(&path).await?.bytes().await })
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let path = path(name)?;
        self.run(range.end - range.start, self.store.get_range(&path, range))
    }

    fn get_many(&self, wants: &[(String, Range<u64>)]) -> Vec<Result<Bytes, StoreError>> {
        let Some(runtime) = &self.runtime else { return Vec::new() };
        let requests = wants.iter().map(|(name, range)| async move {
            let path = path(name)?;
            within(range.end - range.start, self.store.get_range(&path, range.clone())).await
        });
        runtime.block_on(futures_util::stream::iter(requests).buffered(AT_ONCE).collect())
    }

    fn head(&self, name: &str) -> Result<Meta, StoreError> {
        let path = path(name)?;
        self.run(0, self.store.head(&path)).map(meta)
    }

    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError> {
        let path = path(folder)?;
        let all = self.store.list(Some(&path)).map_ok(meta).try_collect::<Vec<_>>();
        let mut all = self.run(256 << 20, all)?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        let path = path(name)?;
        match self.run(0, self.store.delete(&path)) {
            Err(StoreError::NotFound) => Ok(()),
            answer => answer,
        }
    }
}

/// Waits for the answer to a request, with the time limit for its number of bytes. A thread that
/// may abandon its wait checks meanwhile whether to do so (`remote::retrying::A4`): a server that
/// is away may take all of that time before the request fails.
async fn within<T>(
    bytes: u64,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T, StoreError> {
    let mut timed = pin!(tokio::time::timeout(limit(bytes), request));
    let answer = loop {
        if !interrupt::may_abandon() {
            break timed.await;
        }
        match tokio::time::timeout(interrupt::LOOK, &mut timed).await {
            Ok(answer) => break answer,
            Err(_) if interrupt::is_abandoned() => {
                return Err(StoreError::Failed("the wait was given up".to_owned()));
            }
            Err(_) => {}
        }
    };
    answer.map_err(|_| StoreError::Failed("no answer in time".to_owned()))?.map_err(of)
}

fn limit(bytes: u64) -> Duration {
    TIMEOUT + TIMEOUT_PER_MIB * u32::try_from(bytes >> 20).unwrap_or(u32::MAX).min(1 << 12)
}

fn path(name: &str) -> Result<Path, StoreError> {
    Path::parse(name).map_err(|error| StoreError::Refused(error.to_string()))
}

fn meta(found: ObjectMeta) -> Meta {
    let modified_ms = u64::try_from(found.last_modified.timestamp_millis()).unwrap_or(0);
    Meta { name: found.location.to_string(), len: found.size, modified_ms }
}

/// The error with all its causes, in one line.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

fn of(error: object_store::Error) -> StoreError {
    use object_store::Error as E;
    match &error {
        E::NotFound { .. } => StoreError::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => StoreError::Exists,
        E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. }
        | E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::UnknownConfigurationKey { .. } => StoreError::Refused(text(&error)),
        _ => {
            let why = text(&error);
            match [NO_BUCKET, NO_CONTAINER].into_iter().find(|(code, _)| why.contains(code)) {
                Some((_, missing)) => StoreError::Refused(missing.to_owned()),
                None => StoreError::Failed(why),
            }
        }
    }
}

/// The name that a folder of this machine has in [`Objects::host`].
///
/// # Errors
///
/// [`StoreError::Refused`] for a path that is not text, or that has parts like `..`.
pub fn host_name(path: &HostPath) -> Result<String, StoreError> {
    let text = path.to_str().ok_or_else(|| {
        StoreError::Refused(format!(
            "{}: a folder of objects needs a name in UTF-8",
            path.display()
        ))
    })?;
    let name = text.trim_matches('/');
    Path::parse(name).map_err(|error| StoreError::Refused(error.to_string()))?;
    Ok(name.to_owned())
}
