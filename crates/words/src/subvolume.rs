//! `btrfs subvolume`.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buttress_base::text;
use buttress_control::named::Named;
use buttress_survey::Change;
use serde::Deserialize;

pub use crate::columns::Subvolume;

use crate::client;
use crate::columns::{self, Column, Key};
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::location::VolumePath;
use crate::order::{Act, Order, PathInVolume, QuotaAct, Quotas, Shown, SurveyRequest, quota_group};
use crate::ui::Ui;
use crate::units::Units;

/// The pause between two checks of `sync`.
const LOOK: Duration = Duration::from_millis(100);

/// The actions on subvolumes.
#[derive(Debug, clap::Subcommand)]
pub enum Verb {
    /// Create empty subvolumes.
    Create {
        /// Create missing parent directories as well.
        #[arg(short, long)]
        parents: bool,
        /// Make the subvolume a member of this quota group, given as in 1/100. Can be given several
        /// times. Without quotas, this has no effect.
        #[arg(short = 'i', value_name = "GROUP", value_parser = quota_group)]
        groups: Vec<u64>,
        /// The subvolumes.
        #[arg(required = true)]
        places: Vec<OsString>,
    },
    /// Create a snapshot of a subvolume.
    Snapshot {
        /// Make the snapshot read-only.
        #[arg(short)]
        read_only: bool,
        /// Make the snapshot a member of this quota group, given as in 1/100. Can be given several
        /// times. Without quotas, this has no effect.
        #[arg(short = 'i', value_name = "GROUP", value_parser = quota_group)]
        groups: Vec<u64>,
        /// The subvolume.
        source: OsString,
        /// The snapshot, or a folder for it.
        target: OsString,
    },
    /// Delete subvolumes.
    Delete {
        /// Report the deletions as committed, as btrfs-progs does; has no other effect.
        #[arg(short = 'c', long)]
        commit_after: bool,
        /// Report the deletions as committed, as btrfs-progs does; has no other effect.
        #[arg(short = 'C', long)]
        commit_each: bool,
        /// Delete the subvolume with this number.
        #[arg(short = 'i', long)]
        subvolid: Option<u64>,
        /// The subvolumes.
        #[arg(required = true)]
        places: Vec<OsString>,
    },
    /// List subvolumes.
    List(List),
    /// Show everything about one subvolume.
    Show {
        /// The subvolume with this number.
        #[arg(short, long, value_name = "ID", conflicts_with = "uuid")]
        rootid: Option<u64>,
        /// The subvolume with this identifier.
        #[arg(short, long)]
        uuid: Option<String>,
        #[command(flatten)]
        /// The unit of sizes.
        units: Units,
        /// The subvolume, or a path on the volume.
        place: OsString,
    },
    /// List the parts of files that changed since a generation.
    FindNew {
        /// The subvolume.
        place: OsString,
        /// The generation.
        generation: u64,
    },
    /// Show the default subvolume, which a mount shows.
    GetDefault {
        /// A path on the volume.
        place: OsString,
    },
    /// Set the default subvolume.
    SetDefault {
        /// The subvolume, as a path or its number.
        what: OsString,
        /// A path on the volume, where a number was given.
        place: Option<OsString>,
    },
    /// Wait until the space of deleted subvolumes has been freed.
    Sync {
        /// Seconds between two checks.
        #[arg(short, value_name = "SECONDS")]
        sleep: Option<u64>,
        /// A path on the volume.
        place: OsString,
        /// The subvolumes to wait for, by number. The default is all.
        ids: Vec<u64>,
    },
}

/// The options of `list`.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Put `<FS_TREE>/` before the paths of subvolumes that are not directly below this place.
    #[arg(short)]
    all: bool,
    /// Show the generation in which a subvolume was created.
    #[arg(short)]
    created_generation: bool,
    /// Show the generation of the last change. This is always done.
    #[arg(short)]
    generation: bool,
    /// List only subvolumes directly below this place.
    #[arg(short)]
    only_below: bool,
    /// Show the number of the parent subvolume.
    #[arg(short)]
    parent: bool,
    /// Show the UUID of the parent.
    #[arg(short = 'q')]
    parent_uuid: bool,
    /// Show the received UUID.
    #[arg(short = 'R')]
    received_uuid: bool,
    /// List only read-only subvolumes.
    #[arg(short)]
    read_only: bool,
    /// List only snapshots.
    #[arg(short)]
    snapshots: bool,
    /// Show the UUID.
    #[arg(short)]
    uuid: bool,
    /// List only deleted subvolumes that still take space.
    #[arg(short)]
    deleted: bool,
    /// List only subvolumes with this generation, or at least +N, or at most -N.
    #[arg(short = 'G', value_name = "[+|-]N", allow_hyphen_values = true, value_parser = bound)]
    generations: Option<Bound>,
    /// List only subvolumes that were created in this generation, or at least +N, or at most -N.
    #[arg(short = 'C', value_name = "[+|-]N", allow_hyphen_values = true, value_parser = bound)]
    creations: Option<Bound>,
    /// Sort by gen, ogen, rootid or path. A - in front reverses the order. Several keys are
    /// separated by commas.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, value_parser = columns::key)]
    sort: Vec<Key>,
    /// Print the list as a table.
    #[arg(short)]
    table: bool,
    place: OsString,
}

/// Carries out an action.
///
/// # Errors
///
/// A volume that cannot be opened, or subvolumes that are not as the action needs them.
pub fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Create { parents, groups, places } => create(parents, &groups, &places, ui),
        Verb::Snapshot { read_only, groups, source, target } => {
            snapshot(read_only, &groups, &source, &target, ui)
        }
        Verb::Delete { commit_after, commit_each, subvolid, places } => match subvolid {
            Some(id) => delete_id(id, &places, ui),
            None => delete(&places, commit_after || commit_each, ui),
        },
        Verb::List(list) => list_all(&list, ui),
        Verb::Show { rootid, uuid, units, place } => describe(rootid, uuid, units, &place, ui),
        Verb::FindNew { place, generation } => find_new(&place, generation, ui),
        Verb::GetDefault { place } => show(&place, |_| Act::GetDefault, ui),
        Verb::SetDefault { what, place } => set_default(&what, place, ui),
        Verb::Sync { sleep, place, ids } => {
            sync(&place, &ids, sleep.map_or(LOOK, Duration::from_secs), ui)
        }
    }
}

/// Carries out an order about subvolumes.
fn act(act: Act, volume: &Path, ui: &Ui) -> Result<serde_json::Value> {
    client::run(&Order::Subvolume(act), volume, &Devices::default(), "subvolume", ui)
}

/// A failure in the words of btrfs-progs.
fn failed(what: impl Into<String>) -> Failure {
    Failure::new(Exit::Failure, what)
}

/// Fails as btrfs-progs does if a path of the host does not exist.
fn must_exist(place: &OsString) -> Result<()> {
    let is_there = Path::new(place).exists();
    let is_inside = Path::new(&VolumePath::parse(place).image).is_file();
    if is_there || is_inside {
        return Ok(());
    }
    Err(failed("Could not statfs: No such file or directory"))
}

/// A path as btrfs-progs prints it: its folder, a slash, its name.
fn folder_and_name(place: &OsString) -> (String, String) {
    let path = PathBuf::from(place);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    (folder.map_or_else(|| ".".into(), |folder| folder.display().to_string()), name)
}

fn create(parents: bool, groups: &[u64], places: &[OsString], ui: &Ui) -> Result<Exit> {
    let (uid, gid) = buttress_transfer::caller();
    for place in places {
        let (folder, name) = folder_and_name(place);
        if parents {
            std::fs::create_dir_all(&folder).context(|| folder.clone())?;
        }
        if Path::new(place).exists() {
            return Err(failed(format!("target path already exists: {}", place.display())));
        }
        let Named { volume, spot, .. } = Named::parse(place)?;
        act(Act::Create { at: spot, uid, gid, groups: groups.to_vec() }, &volume, ui)?;
        ui.line(format!("Create subvolume '{folder}/{name}'"))?;
    }
    Ok(Exit::Success)
}

fn snapshot(
    read_only: bool,
    groups: &[u64],
    source: &OsString,
    target: &OsString,
    ui: &Ui,
) -> Result<Exit> {
    must_exist(source)?;
    let (from, to) = (Named::parse(source)?, Named::parse(target)?);
    if !from.is_one_with(&to) {
        return Err(failed(format!(
            "cannot snapshot '{}': Invalid cross-device link",
            source.display()
        )));
    }
    // In an existing folder the snapshot gets the name of its source.
    let place = Path::new(target);
    let (folder, name) = if place.is_dir() {
        let (_, name) = folder_and_name(source);
        (place.display().to_string(), name)
    } else {
        folder_and_name(target)
    };
    let kind = if read_only { "readonly snapshot" } else { "snapshot" };
    let groups = groups.to_vec();
    let order = Act::Snapshot { source: from.spot, target: to.spot, read_only, groups };
    act(order, &from.volume, ui)?;
    ui.line(format!("Create a {kind} of '{}' in '{folder}/{name}'", source.display()))?;
    Ok(Exit::Success)
}

fn delete(places: &[OsString], waits: bool, ui: &Ui) -> Result<Exit> {
    let mut ended = Exit::Success;
    for place in places {
        let named = must_exist(place).and_then(|()| Named::parse(place));
        let Named { volume, spot, .. } = match named {
            Ok(named) => named,
            // As with btrfs-progs, the other subvolumes are deleted all the same.
            Err(failure) => {
                let _ = writeln!(std::io::stderr(), "ERROR: {failure}");
                ended = Exit::Failure;
                continue;
            }
        };
        let whole = Path::new(place).canonicalize();
        let whole =
            whole.map_or_else(|_| place.display().to_string(), |at| at.display().to_string());
        match act(Act::Delete { at: spot, wait: false }, &volume, ui) {
            Ok(_) => {
                let how = if waits { "commit" } else { "no-commit" };
                ui.line(format!("Delete subvolume ({how}): '{whole}'"))?;
            }
            Err(failure) => {
                let text = format!("ERROR: Could not destroy subvolume/snapshot: {failure}");
                // Standard error may be closed.
                let _ = writeln!(std::io::stderr(), "{text}");
                ended = Exit::Failure;
            }
        }
    }
    Ok(ended)
}

/// Deletes the subvolume with a number, after finding its path in the list.
fn delete_id(id: u64, places: &[OsString], ui: &Ui) -> Result<Exit> {
    let Named { volume, spot, .. } = Named::parse(&places[0])?;
    let found = all(&volume, ui)?.into_iter().find(|one| one.id == id);
    let found = found.ok_or_else(|| failed(format!("Could not find subvolume {id}")))?;
    let path = format!("/{}", found.path).into_bytes();
    let at = PathInVolume { path, is_from_top: true, ..spot };
    act(Act::Delete { at, wait: false }, &volume, ui)?;
    ui.line(format!("Delete subvolume (no-commit): '{}/{}'", volume.display(), found.path))?;
    Ok(Exit::Success)
}

/// Returns every subvolume of a volume except the top level.
///
/// # Errors
///
/// A volume that cannot be opened.
pub fn all(volume: &Path, ui: &Ui) -> Result<Vec<Subvolume>> {
    let done = act(Act::List, volume, ui)?;
    let shown = Shown::deserialize(done).context(|| "the answer")?;
    Vec::deserialize(shown.document).context(|| "the answer")
}

/// Returns the number of the subvolume that has its root directory at a place.
fn id_of(place: &OsString, ui: &Ui) -> Result<u64> {
    let Named { volume, spot, .. } = Named::parse(place)?;
    let shown = Shown::deserialize(act(Act::Show { at: spot }, &volume, ui)?);
    let shown = shown.context(|| "the answer")?;
    Ok(shown.document["id"].as_u64().unwrap_or(0))
}

/// Returns the deleted subvolumes that still take space. Their names are gone.
fn deleted(volume: &Path, ui: &Ui) -> Result<Vec<Subvolume>> {
    let told = act(Act::Dying, volume, ui)?;
    let numbers = |name: &str| Vec::<u64>::deserialize(&told[name]).context(|| "the answer");
    let (ids, generations) = (numbers("dying")?, numbers("generations")?);
    Ok(ids.into_iter().zip(generations).map(|(id, at)| Subvolume::deleted(id, at)).collect())
}

/// Generations that are listed.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Only(u64),
    Least(u64),
    Most(u64),
}

/// Reads `+N`, `-N` or `N`.
fn bound(text: &str) -> Result<Bound, String> {
    let number = |digits: &str| {
        digits.parse::<u64>().map_err(|_| format!("{digits} is not a valid numeric value"))
    };
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(least), _) => number(least).map(Bound::Least),
        (_, Some(most)) => number(most).map(Bound::Most),
        _ => number(text).map(Bound::Only),
    }
}

impl Bound {
    fn has(self, generation: u64) -> bool {
        match self {
            Self::Only(only) => generation == only,
            Self::Least(least) => generation >= least,
            Self::Most(most) => generation <= most,
        }
    }
}

fn list_all(list: &List, ui: &Ui) -> Result<Exit> {
    let Named { volume, spot, .. } = Named::parse(&list.place)?;
    if spot.is_mounted && !Path::new(&list.place).exists() {
        let place = list.place.display();
        // As with btrfs-progs, there are two lines.
        let what = "No such file or directory\nERROR: can't access";
        return Err(failed(format!("cannot access '{place}': {what} '{place}'")));
    }
    let mut found = if list.deleted { deleted(&volume, ui)? } else { all(&volume, ui)? };
    found.retain(|one| {
        list.generations.is_none_or(|bound| bound.has(one.generation))
            && list.creations.is_none_or(|bound| bound.has(one.created_generation))
    });
    columns::sort(&mut found, &list.sort);
    if list.read_only {
        found.retain(|one| one.read_only);
    }
    if list.snapshots {
        found.retain(|one| one.parent_uuid.is_some());
    }
    if (list.all || list.only_below) && !list.deleted {
        let top = id_of(&list.place, ui)?;
        if list.only_below {
            found.retain(|one| one.top_level == top);
        }
        for one in found.iter_mut().filter(|one| list.all && one.top_level != top) {
            one.path.insert_str(0, "<FS_TREE>/");
        }
    }
    let columns = [
        (true, Column::Id),
        (true, Column::Generation),
        (
            list.created_generation || list.snapshots || list.creations.is_some(),
            Column::CreatedGeneration,
        ),
        (list.parent, Column::Parent),
        (true, Column::TopLevel),
        (list.snapshots, Column::Created),
        (list.parent_uuid, Column::ParentUuid),
        (list.received_uuid, Column::ReceivedUuid),
        (list.uuid, Column::Uuid),
        (true, Column::Path),
    ];
    let columns: Vec<_> =
        columns.into_iter().filter_map(|(is_shown, column)| is_shown.then_some(column)).collect();
    if list.table {
        for line in columns::head(&columns) {
            ui.line(line)?;
        }
    }
    let line = if list.table { columns::row } else { columns::line };
    for one in &found {
        ui.line(line(&columns, one))?;
    }
    Ok(Exit::Success)
}

/// Prints everything about the subvolume at a place, or about the one with a number or identifier.
fn describe(
    rootid: Option<u64>,
    uuid: Option<String>,
    units: Units,
    place: &OsString,
    ui: &Ui,
) -> Result<Exit> {
    let Named { volume, spot, .. } = Named::parse(place)?;
    let from_top = |path: &str| {
        let path = text::decode(path).unwrap_or_default();
        PathInVolume { path: [&b"/"[..], &path].concat(), is_from_top: true, ..spot.clone() }
    };
    let at = match (rootid, uuid) {
        (None, None) => spot,
        (Some(5), _) => from_top(""),
        (Some(id), _) => {
            let found = all(&volume, ui)?.into_iter().find(|one| one.id == id);
            let none = || failed("Subvolume not found: No such file or directory");
            from_top(&found.ok_or_else(none)?.path)
        }
        (None, Some(uuid)) => {
            let found = all(&volume, ui)?.into_iter().find(|one| one.uuid == uuid);
            let none = || failed(format!("can't find uuid '{uuid}' on '{}'", place.display()));
            from_top(&found.ok_or_else(none)?.path)
        }
    };
    let shown = act(Act::Show { at }, &volume, ui)?;
    let shown = Shown::deserialize(shown).context(|| "the answer")?;
    for line in &shown.lines {
        ui.line(line)?;
    }
    let order = Order::Quota(QuotaAct::Show);
    let told = client::run(&order, &volume, &Devices::default(), "quotas", ui)?;
    let quotas: Quotas = serde_json::from_value(told).context(|| "the answer")?;
    let id = format!("0/{}", shown.document["id"]);
    let group = quotas.groups.iter().find(|group| group.qgroupid == id);
    if let Some(group) = group.filter(|_| quotas.enabled) {
        let limit = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |at| units.show(at));
        ui.line(format!("\tQuota group:\t\t{id}"))?;
        ui.line(format!("\t  Limit referenced:\t{}", limit(group.max_referenced)))?;
        ui.line(format!("\t  Limit exclusive:\t{}", limit(group.max_exclusive)))?;
        ui.line(format!("\t  Usage referenced:\t{}", units.show(group.referenced)))?;
        ui.line(format!("\t  Usage exclusive:\t{}", units.show(group.exclusive)))?;
    }
    Ok(Exit::Success)
}

fn show(place: &OsString, make: impl FnOnce(PathInVolume) -> Act, ui: &Ui) -> Result<Exit> {
    let Named { volume, spot, .. } = Named::parse(place)?;
    let shown = Shown::deserialize(act(make(spot), &volume, ui)?).context(|| "the answer")?;
    for line in &shown.lines {
        ui.line(line)?;
    }
    Ok(Exit::Success)
}

fn set_default(what: &OsString, place: Option<OsString>, ui: &Ui) -> Result<Exit> {
    let named = Named::parse(place.as_ref().unwrap_or(what))?;
    let order = match place {
        None => Act::SetDefault { at: named.spot },
        Some(_) => {
            let id = what.to_str().and_then(|text| text.parse().ok());
            let id = id.ok_or_else(|| failed(format!("not a number: {}", what.display())))?;
            Act::SetDefaultId { id }
        }
    };
    act(order, &named.volume, ui)?;
    Ok(Exit::Success)
}

fn find_new(place: &OsString, since: u64, ui: &Ui) -> Result<Exit> {
    let Named { volume, spot, .. } = Named::parse(place)?;
    let order = Order::Survey { at: spot, request: SurveyRequest::FindNew { since } };
    let done = client::run(&order, &volume, &Devices::default(), "find-new", ui)?;
    let (found, marker): (Vec<Change>, u64) =
        serde_json::from_value(done).context(|| "the answer")?;
    for Change { ino, at, len, disk, offset, generation, flags, path } in &found {
        let flags = if flags.is_empty() { "NONE".to_owned() } else { flags.join("|") };
        let place = format!("disk start {disk} offset {offset} gen {generation}");
        let name = crate::location::show(path);
        ui.line(format!("inode {ino} file offset {at} len {len} {place} flags {flags} {name}"))?;
    }
    ui.line(format!("transid marker was {marker}"))?;
    Ok(Exit::Success)
}

/// Waits until the cleaner has removed deleted subvolumes, and reports each one. Subvolumes with
/// these numbers may not be deleted yet.
fn sync(place: &OsString, ids: &[u64], pause: Duration, ui: &Ui) -> Result<Exit> {
    let Named { volume, .. } = Named::parse(place)?;
    let dying = || {
        let told = act(Act::Dying, &volume, ui)?;
        Vec::<u64>::deserialize(&told["dying"]).context(|| "the answer")
    };
    let mut left = if ids.is_empty() { dying()? } else { ids.to_vec() };
    if left.is_empty() {
        return Ok(Exit::Success);
    }
    let total = left.len();
    ui.line(format!("Waiting for {total} subvolume{}", if total == 1 { "" } else { "s" }))?;
    let (begun, mut gone) = (Instant::now(), 0);
    loop {
        let mut there = dying()?;
        if !ids.is_empty() {
            there.extend(all(&volume, ui)?.into_iter().map(|one| one.id));
        }
        for id in left.extract_if(.., |id| !there.contains(id)) {
            gone += 1;
            ui.line(format!("Subvolume id {id} is gone ({gone}/{total})"))?;
        }
        if left.is_empty() {
            break;
        }
        std::thread::sleep(pause);
    }
    tracing::debug!(waited = ?begun.elapsed(), "deleted subvolumes have gone");
    Ok(Exit::Success)
}
