//! Opens and makes volumes at every place that a user can name.
//!
//! # Invariants
//!
//! - **Z1** Opening for writing begins a new epoch with a manifest. After that the store refuses
//!   manifests of earlier writers.
//! - **Z2** A store that did not pass its trial gets no manifest. Before the trial has passed, only
//!   the trial's object and a sign of life are written.

use std::path::Path;
use std::sync::Arc;

use buttress_base::thread;
use buttress_block::{Device, FileDevice, OpenOptions, Window};

use crate::budget::Budget;
use crate::cache::{Cache, Settled};
use crate::chain::{Added, Chain};
use crate::claim;
use crate::core::Core;
use crate::device::RemoteDevice;
use crate::disk_lines::DiskLines;
use crate::envelope::VolumeId;
use crate::error::{Error, Result};
use crate::inside::Inside;
use crate::log_base;
use crate::manifest::{LocalLog, LogMark, Manifest, Writer};
use crate::names::Names;
use crate::options::{At, OpenRequest, Options};
use crate::pin;
use crate::place::{Place, StoreKind, is_remote};
use crate::random;
use crate::retrying::RetryingStore;
use crate::seal::SealedStore;
use crate::secret::Secret;
use crate::trial;
use crate::units::{CommitNumber, ObjectNumber};
use crate::unsent::Unsent;
use buttress_store::buckets::{self, Buckets};
use buttress_store::{Objects, Store, StoreError, host_name};

/// How many threads compete in a trial when a volume is opened.
const RIVALS_KNOWN: u64 = 4;
/// How many manifests of other writers may come first while a volume is opened.
const RACES_MAX: u32 = 16;

/// A place in a store, before a volume is open.
#[derive(Clone, Debug)]
pub struct Site {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) prefix: String,
    pub(crate) place: String,
    /// The buckets of the service, if the store is a bucket.
    pub(crate) buckets: Option<Arc<Buckets>>,
    /// The same store with encryption, if the volume is encrypted.
    pub(crate) seal: Option<Arc<SealedStore>>,
    /// How to open the volume.
    pub options: Options,
}

/// Opens a bucket by its name and the options of its service.
#[cfg(any(feature = "az", feature = "gs", feature = "s3"))]
type Client = fn(&str, &[(String, String)]) -> std::result::Result<Objects, StoreError>;

/// The bucket of a place, with all other buckets of its service.
#[cfg(any(feature = "az", feature = "gs", feature = "s3"))]
fn buckets_of(
    bucket: &str,
    client: Client,
    options: Vec<(String, String)>,
) -> std::result::Result<Arc<Buckets>, StoreError> {
    let open = move |name: &str| Ok(Arc::new(client(name, &options)?) as Arc<dyn Store>);
    Ok(Arc::new(Buckets::new(bucket, open)?))
}

impl Site {
    /// Finds the store of a place, and takes the place's options.
    ///
    /// # Errors
    ///
    /// [`Error::Place`] if the place does not parse, [`Error::Store`] if the store cannot be used.
    pub fn of(volume: &Path, options: Options) -> Result<Self> {
        let place = Place::parse(volume)?;
        let shown = volume.display().to_string();
        let mut options = options;
        let mut others = Vec::new();
        for (key, value) in place.options {
            if !options.accept(&shown, &key, &value)? {
                others.push((key, value));
            }
        }
        let refused = |source| Error::Store { name: shown.clone(), source };
        let (store, prefix, buckets): (Arc<dyn Store>, String, _) = match place.kind {
            StoreKind::Folder => {
                if let Some((key, _)) = others.first() {
                    let known = crate::options::OPTION_NAMES.join(", ");
                    let why = format!("there is no option {key:?}; there are {known}");
                    return Err(Error::Place { place: shown, why });
                }
                // Two names of the same folder name the same volume, so the path is resolved.
                let path = Path::new("/").join(&place.prefix);
                let path = path.canonicalize().unwrap_or(path);
                let prefix = host_name(&path).map_err(refused)?;
                (Arc::new(Objects::host().map_err(refused)?), prefix, None)
            }
            #[cfg(feature = "s3")]
            StoreKind::S3 { bucket } => {
                let buckets = buckets_of(&bucket, Objects::s3, others).map_err(refused)?;
                (Arc::clone(&buckets) as Arc<dyn Store>, place.prefix, Some(buckets))
            }
            #[cfg(feature = "gs")]
            StoreKind::Google { bucket } => {
                let buckets = buckets_of(&bucket, Objects::gs, others).map_err(refused)?;
                (Arc::clone(&buckets) as Arc<dyn Store>, place.prefix, Some(buckets))
            }
            #[cfg(feature = "az")]
            StoreKind::Azure { container } => {
                let buckets = buckets_of(&container, Objects::az, others).map_err(refused)?;
                (Arc::clone(&buckets) as Arc<dyn Store>, place.prefix, Some(buckets))
            }
            #[cfg(not(all(feature = "az", feature = "gs", feature = "s3")))]
            _ => {
                let why = "this program was built without such places".to_owned();
                return Err(refused(StoreError::Refused(why)));
            }
        };
        options.check(&shown)?;
        let secret = Secret::find(options.key_file.as_deref()).map_err(refused)?;
        let this = Self { store, prefix, place: shown, buckets, seal: None, options };
        Ok(match secret {
            Some(secret) => this.encrypted(secret),
            None => this,
        })
    }

    /// A place in an existing store, for tests.
    #[must_use]
    pub fn in_store(store: Arc<dyn Store>, prefix: &str, options: Options) -> Self {
        let place = format!("{}/{prefix}", store.title());
        Self { store, prefix: prefix.to_owned(), place, buckets: None, seal: None, options }
    }

    /// A place in a bucket of a service, for tests.
    #[cfg(feature = "simulated")]
    #[must_use]
    pub fn in_buckets(buckets: Arc<Buckets>, prefix: &str, options: Options) -> Self {
        Self { buckets: Some(Arc::clone(&buckets)), ..Self::in_store(buckets, prefix, options) }
    }

    /// How this place names a prefix that `other` calls `prefix`.
    pub(crate) fn seen(&self, other: &Self, prefix: &str) -> String {
        match (&self.buckets, &other.buckets) {
            (Some(own), Some(other)) => buckets::seen(prefix, other.bucket(), own.bucket()),
            _ => prefix.to_owned(),
        }
    }

    pub(crate) fn chain(&self) -> Chain {
        let store =
            RetryingStore::new(Arc::clone(&self.store), self.options.timeout, random::seed());
        Chain { store, names: Names::new(&self.prefix), place: self.place.clone() }
    }

    /// Says whether there is a volume, for tests.
    ///
    /// # Errors
    ///
    /// Those of the store.
    #[cfg(feature = "simulated")]
    pub fn has_volume(&self) -> Result<bool> {
        Ok(self.chain().at_opening().head()?.is_some())
    }

    /// Makes a volume of `len` zero bytes, unless there is a volume of that length, and opens the
    /// volume.
    ///
    /// # Errors
    ///
    /// [`Error::OtherSize`] if there is a volume of another length, [`Error::Unsafe`] for a store
    /// that does not pass its trial, and those of opening.
    pub fn create(&self, len: u64) -> Result<RemoteDevice> {
        let chain = self.chain();
        let wanted = len.next_multiple_of(4096);
        self.check_size(wanted)?;
        match chain.at_opening().head()? {
            Some((_, head)) if head.device_len == wanted => {}
            Some((_, head)) => {
                let (place, found) = (self.place.clone(), head.device_len);
                return Err(Error::OtherSize { place, found, wanted });
            }
            None => {
                self.make_key(None)?;
                trial::run(&chain.store, &chain.names, trial::RIVALS_NEW)?;
                let first = Manifest {
                    number: CommitNumber(1),
                    // The first epoch is random. So objects that a late writer of a deleted volume
                    // writes to this place have other names.
                    epoch: (random::seed() >> 40) as u32,
                    nonce: random::hex(),
                    writer: Writer::this(),
                    device_len: wanted,
                    object_len: self.options.object_len,
                    next_object: ObjectNumber(1),
                    ..Manifest::default()
                };
                chain.add(VolumeId(random::bytes()), &first)?;
            }
        }
        self.open()
    }

    /// Opens the volume.
    ///
    /// # Errors
    ///
    /// [`Error::NoVolume`] if there is none; [`Error::Busy`] if another writer seems to be alive;
    /// [`Error::Unsafe`] for a store that cannot be written safely.
    pub fn open(&self) -> Result<RemoteDevice> {
        let chain = self.chain();
        let (volume, head) = self.commit(&chain)?;
        let writer = Writer::this();
        if !self.options.write {
            return self.open_at(chain, volume, head, writer);
        }
        let cache = self.cache(volume, &head, &writer)?;
        // The map is read while the store is tried and the volume is taken. Taking the volume does
        // not change the content.
        let expected = self.successor(&head, &writer);
        let disk = self.disk_lines(volume, head.object_len).map(Arc::new);
        let begun = |manifest: Manifest, cache| {
            let (chain, options) = (chain.clone(), self.options.clone());
            let core = Core::new(chain, volume, manifest, writer.clone(), options, cache);
            Core { disk: disk.clone(), ..core }
        };
        let mut core = begun(expected.clone(), cache);
        let (taken, loaded) = thread::scope(|scope| {
            let load = scope.spawn(|| core.load(&expected));
            let taken = self.take(&chain, volume, head, &writer, core.cache.as_ref());
            (taken, load.join())
        });
        let loaded = loaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (manifest, settled) = taken?;
        if (manifest.number, manifest.epoch) == (expected.number, expected.epoch) {
            loaded?;
            *core.last.lock() = manifest;
        } else {
            // Another writer took the volume in between, so the content may be newer.
            core = begun(manifest.clone(), core.cache.take());
            core.load(&manifest)?;
        }
        RemoteDevice::start(core, &settled)
    }

    /// Opens the cache for data that was read, if the options name a folder. If that fails, the
    /// volume opens without the cache.
    fn disk_lines(&self, volume: VolumeId, object_len: u64) -> Option<DiskLines> {
        let dir = self.options.cache_dir.as_ref()?;
        // The other half of the cache's size is for the log. A reader has no log, but uses only
        // this half, too: a smaller or larger cache would lose lines that a writer left.
        let budget = self.options.cache_size / 2;
        let memory = Budget::new(&self.options, object_len).index;
        let failed = |error: &dyn std::fmt::Display| {
            tracing::warn!(dir = %dir.display(), %error, "nothing that is read is kept there");
            None
        };
        match self.cache_seal(volume) {
            Ok(seal) => DiskLines::open(dir, volume, seal, budget, memory)
                .unwrap_or_else(|error| failed(&error)),
            Err(error) => failed(&error),
        }
    }

    /// Opens the folder of the local cache, if the options name one.
    fn cache(&self, volume: VolumeId, head: &Manifest, this: &Writer) -> Result<Option<Cache>> {
        let Some(dir) = &self.options.cache_dir else { return Ok(None) };
        if let Some(cache) = Cache::open(dir, volume, self.cache_seal(volume)?)? {
            return Ok(Some(cache));
        }
        if head.writer.was_here(this) && !self.options.takeover {
            let Writer { host, pid, .. } = head.writer.clone();
            let place = self.place.clone();
            return Err(Error::Busy { place, host, pid, here: true, age_seconds: 0 });
        }
        let why = "another process has it open".to_owned();
        Err(Error::Cache { dir: dir.display().to_string(), why })
    }

    /// The commit to open.
    pub(crate) fn commit(&self, chain: &Chain) -> Result<(VolumeId, Manifest)> {
        let wrong = |why: &str| Error::Pin { place: self.place.clone(), why: why.to_owned() };
        if self.options.at != At::Newest && self.options.write {
            return Err(wrong(
                "an old commit can only be read; `remote clone` makes a volume of it",
            ));
        }
        match &self.options.at {
            At::Newest => {
                let none = || Error::NoVolume { place: self.place.clone() };
                chain.at_opening().head()?.ok_or_else(none)
            }
            At::Pin(name) => pin::get(chain, name),
            At::Number(number) => {
                let found = chain.get(CommitNumber(*number))?;
                found.ok_or_else(|| wrong(&format!("commit {number} is not there")))
            }
        }
    }

    /// Opens a commit for reading.
    pub(crate) fn open_at(
        &self,
        chain: Chain,
        volume: VolumeId,
        manifest: Manifest,
        writer: Writer,
    ) -> Result<RemoteDevice> {
        let options = self.options.clone();
        let mut core = Core::new(chain, volume, manifest.clone(), writer, options, None);
        if let Some(dir) = &self.options.cache_dir {
            Cache::check(dir, volume)?;
            core.disk = self.disk_lines(volume, manifest.object_len).map(Arc::new);
        }
        core.load(&manifest)?;
        RemoteDevice::start(core, &Settled::default())
    }

    /// Refuses a size in the place that is smaller than the volume.
    fn check_size(&self, device_len: u64) -> Result<()> {
        match self.options.size.filter(|size| *size < device_len) {
            Some(size) => {
                let why = format!("it has {device_len} bytes, and does not shrink to {size}");
                Err(Error::Place { place: self.place.clone(), why })
            }
            None => Ok(()),
        }
    }

    /// Takes the volume for this writer (Z1).
    pub(crate) fn take(
        &self,
        chain: &Chain,
        volume: VolumeId,
        head: Manifest,
        writer: &Writer,
        cache: Option<&Cache>,
    ) -> Result<(Manifest, Settled)> {
        self.check_size(head.device_len)?;
        thread::scope(|scope| {
            let race = || trial::race(&chain.store, &chain.names, RIVALS_KNOWN);
            let mut trial = Some(scope.spawn(race));
            let mut tried = || {
                let Some(trial) = trial.take() else { return Ok(()) };
                let joined = trial.join();
                let (name, outcome) =
                    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                // Only the end of the scope waits for this deletion.
                scope.spawn(move || trial::end(&chain.store, &name));
                outcome
            };
            let taken = self.take_after(chain, volume, head, writer, cache, &mut tried);
            // If the volume was refused before the trial ended, the trial is still awaited here.
            tried().and(taken)
        })
    }

    /// Takes the volume. Waits with `tried` for the trial before it writes a manifest (Z2).
    fn take_after(
        &self,
        chain: &Chain,
        volume: VolumeId,
        head: Manifest,
        writer: &Writer,
        cache: Option<&Cache>,
        tried: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Manifest, Settled)> {
        let mut head = head;
        for _ in 0..RACES_MAX {
            let epoch = head.epoch + 1;
            claim::show(chain, volume, epoch, writer)?;
            let taken = self.take_from(chain, volume, &head, writer, cache, tried);
            match taken {
                Ok((Added::Ours, settled, manifest)) => return Ok((manifest, settled)),
                Ok((Added::Theirs(theirs), ..)) => {
                    claim::end(chain, epoch, writer)?;
                    head = match chain.follow(theirs.number)? {
                        Some((_, newest)) => newest,
                        None => *theirs,
                    };
                }
                Err(error) => {
                    let _ = claim::end(chain, epoch, writer);
                    let is_stale = matches!(error, Error::Stale { .. });
                    if let Some((log, epoch)) = cache.filter(|_| is_stale).and_then(Cache::held_log)
                    {
                        log_base::keep_base(chain, volume, &log, epoch);
                    }
                    return Err(error);
                }
            }
        }
        let Writer { host, pid, .. } = head.writer;
        Err(Error::Busy { place: self.place.clone(), host, pid, here: false, age_seconds: 0 })
    }

    fn take_from(
        &self,
        chain: &Chain,
        volume: VolumeId,
        head: &Manifest,
        writer: &Writer,
        cache: Option<&Cache>,
        tried: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Added, Settled, Manifest)> {
        let epoch = head.epoch + 1;
        if !self.options.takeover {
            claim::check(chain, head, epoch, writer)?;
        }
        let settled = self.settle(chain, head, cache)?;
        let has_log = self.options.is_local() || settled.replay.is_some();
        let mut taken = Manifest {
            local: cache.filter(|_| has_log).map(|cache| {
                let mark = cache.mark(&writer.host);
                // A log that is still to be replayed may be in clear text, so the manifest does not
                // call it sealed (`log::L5`).
                let is_plain = settled.replay.as_ref().is_some_and(|replay| replay.may_be_plain);
                LocalLog { sealed: mark.sealed && !is_plain, ..mark }
            }),
            ..self.successor(head, writer)
        };
        if self.options.is_local() {
            taken.mark(LogMark { log: writer.id.clone(), position: 0 });
        }
        tried()?;
        Ok((chain.add(volume, &taken)?, settled, taken))
    }

    /// The manifest that follows `head` and only takes the volume.
    fn successor(&self, head: &Manifest, writer: &Writer) -> Manifest {
        Manifest {
            number: CommitNumber(head.number.0 + 1),
            epoch: head.epoch + 1,
            nonce: random::hex(),
            follows: head.nonce.clone(),
            writer: writer.clone(),
            time_ms: buttress_base::clock::wall().as_millis() as u64,
            is_opening: true,
            // The new part of a longer device has no runs in the map, so it reads as zeroes.
            device_len: self.options.size.unwrap_or(0).max(head.device_len),
            ..head.clone()
        }
    }

    /// Decides about the local log of the preceding writer: to replay it, to give it up, or to
    /// refuse the opening.
    fn settle(&self, chain: &Chain, head: &Manifest, cache: Option<&Cache>) -> Result<Settled> {
        let goes_on = self.options.discard_local;
        let answer = cache.map_or(Ok(None), |cache| cache.settle(head, &self.place));
        let settled = match (answer, cache) {
            (Ok(replay), _) => Settled { replay, lost: None },
            (Err(Error::Stale { .. }), Some(cache)) if goes_on => {
                if let Some((log, _)) = cache.held_log() {
                    // An earlier opening may have pinned the log's commit for a salvage of the log.
                    let _ = pin::delete(chain, &log_base::pin_of(&log));
                }
                Settled { replay: None, lost: cache.give_up(head)? }
            }
            (Err(error), _) => return Err(error),
        };
        let is_here = cache.is_some_and(|cache| cache.is_of_this(head));
        match &head.local {
            Some(local) if !is_here && !goes_on && !self.options.takeover => {
                let (place, host, dir) =
                    (self.place.clone(), local.host.clone(), local.dir.clone());
                Err(Error::Elsewhere { place, host, dir })
            }
            _ => Ok(settled),
        }
    }
}

/// An open volume, on this machine or in a store.
#[derive(Clone, Debug)]
pub enum Opened {
    /// A regular file or a block device.
    File(Arc<FileDevice>),
    /// A part of a disk or of its image.
    Part(Arc<FileDevice>, Arc<Window>),
    /// A place in a store.
    Remote(Arc<RemoteDevice>),
}

impl Opened {
    /// The device.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::File(device) => Arc::clone(device) as Arc<dyn Device>,
            Self::Part(_, part) => Arc::clone(part) as Arc<dyn Device>,
            Self::Remote(device) => Arc::clone(device) as Arc<dyn Device>,
        }
    }

    /// The file or block device, if the volume is a whole file or block device.
    #[must_use]
    pub fn file(&self) -> Option<&FileDevice> {
        match self {
            Self::File(device) => Some(device),
            Self::Part(..) | Self::Remote(_) => None,
        }
    }

    /// The volume in a store.
    ///
    /// # Errors
    ///
    /// [`Error::Place`] for a volume on this machine.
    pub fn remote(self) -> Result<Arc<RemoteDevice>> {
        match self {
            Self::Remote(device) => Ok(device),
            Self::File(_) | Self::Part(..) => {
                let why = "is in no store of objects".to_owned();
                Err(Error::Place { place: self.device().name(), why })
            }
        }
    }

    /// Acknowledged writes of a stale local log that was given up, because the options said so.
    #[must_use]
    pub fn discarded(&self) -> Option<&Unsent> {
        match self {
            Self::File(_) | Self::Part(..) => None,
            Self::Remote(device) => device.discarded(),
        }
    }

    /// Releases the volume, so that another program can open it. This device writes nothing
    /// afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`RemoteDevice::close`].
    pub fn release(&self) -> Result<()> {
        match self {
            Self::File(device) | Self::Part(device, _) => {
                device.unlock();
                Ok(())
            }
            Self::Remote(device) => device.close(),
        }
    }
}

/// Opens any volume that a user can name. `asked` has the options for a volume in a store.
///
/// # Errors
///
/// Those of [`FileDevice::open`], of [`Inside::open`], of [`Site::of`] and of [`Site::open`].
pub fn open(volume: &Path, how: OpenOptions, asked: &OpenRequest) -> Result<Opened> {
    if let Some(inside) = Inside::of(volume) {
        let (disk, part) = inside.open(how)?;
        return Ok(Opened::Part(disk, part));
    }
    if !is_remote(volume) {
        return Ok(Opened::File(Arc::new(FileDevice::open(volume, how)?)));
    }
    let options = asked.options(volume, how.write)?;
    Ok(Opened::Remote(Arc::new(Site::of(volume, options)?.open()?)))
}

/// Makes a volume of `len` bytes if the place has none, and opens it for writing. A place inside a
/// disk has its length already.
///
/// # Errors
///
/// Those of [`FileDevice::create`], of [`Inside::open`], of [`Site::of`] and of [`Site::create`].
pub fn create(volume: &Path, len: u64, asked: &OpenRequest) -> Result<Opened> {
    if Inside::of(volume).is_some() {
        return open(volume, OpenOptions::WRITE, asked);
    }
    if !is_remote(volume) {
        return Ok(Opened::File(Arc::new(FileDevice::create(volume, len)?)));
    }
    let options = asked.options(volume, true)?;
    Ok(Opened::Remote(Arc::new(Site::of(volume, options)?.create(len)?)))
}

/// Refuses to write a volume of several devices if one of them is in a store. Such devices would
/// have no common commit.
///
/// # Errors
///
/// [`Error::Mixed`] with the device in a store.
pub fn check_alone<'p>(paths: impl Iterator<Item = &'p Path> + Clone, writes: bool) -> Result<()> {
    match paths.clone().find(|path| is_remote(path)) {
        Some(path) if writes && paths.count() > 1 => {
            Err(Error::Mixed { place: path.display().to_string() })
        }
        _ => Ok(()),
    }
}
