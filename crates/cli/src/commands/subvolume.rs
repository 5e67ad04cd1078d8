//! `buttress subvolume`: makes, copies, deletes and shows subvolumes, in the words of `btrfs subvolume`.

use std::ffi::OsString;
use std::time::Duration;

use buttress_fs::{Filesystem, Ino, RootFlags, RootItem, SubvolumeInfo, TreeId};
use serde::Serialize;

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::{self, VolumePath};
use crate::ui::Ui;
use crate::when;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make empty subvolumes.
    Create {
        /// The subvolumes, as IMG:/path.
        #[arg(required = true, value_name = "IMG:/PATH")]
        places: Vec<OsString>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Make a snapshot of a subvolume.
    Snapshot {
        /// Forbid changes of the snapshot.
        #[arg(short = 'r')]
        read_only: bool,
        /// The subvolume to be copied, as IMG:/path.
        #[arg(value_name = "IMG:/SOURCE")]
        source: OsString,
        /// The snapshot, or a directory in which it gets the source's name.
        #[arg(value_name = "IMG:/TARGET")]
        target: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Delete subvolumes, and give their space back.
    Delete {
        /// The subvolumes, as IMG:/path.
        #[arg(required = true, value_name = "IMG:/PATH")]
        places: Vec<OsString>,
        /// Leave what they held to the next writer: it is given back while the volume is mounted.
        #[arg(long)]
        later: bool,
        #[command(flatten)]
        devices: Devices,
    },
    /// List all subvolumes.
    List {
        /// The volume.
        #[arg(value_name = "IMG")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Show everything about one subvolume.
    Show {
        /// The subvolume, as IMG:/path.
        #[arg(value_name = "IMG:/PATH")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Show which subvolume is mounted when no other is asked for.
    GetDefault {
        /// The volume.
        #[arg(value_name = "IMG")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Have another subvolume mounted when no other is asked for.
    SetDefault {
        /// The subvolume, as IMG:/path; or its number, and the volume behind it.
        #[arg(value_name = "IMG:/PATH | ID")]
        what: OsString,
        /// The volume, where a number came before.
        #[arg(value_name = "IMG")]
        place: Option<OsString>,
        #[command(flatten)]
        devices: Devices,
    },
}

/// What scripts read of one subvolume.
#[derive(Serialize)]
struct Document {
    id: u64,
    generation: u64,
    top_level: u64,
    path: String,
    uuid: String,
    parent_uuid: Option<String>,
    received_uuid: Option<String>,
    created: i64,
    created_generation: u64,
    read_only: bool,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    match args.verb {
        Verb::Create { places, devices } => create(&places, &devices, ui),
        Verb::Snapshot { read_only, source, target, devices } => {
            snapshot(read_only, &source, &target, &devices, ui)
        }
        Verb::Delete { places, later, devices } => delete(&places, later, &devices, ui),
        Verb::List { place, devices } => list(&place, &devices, ui),
        Verb::Show { place, devices } => show(&place, &devices, ui),
        Verb::GetDefault { place, devices } => get_default(&place, &devices, ui),
        Verb::SetDefault { what, place, devices } => set_default(&what, place, &devices),
    }
}

fn create(places: &[OsString], devices: &Devices, ui: &Ui) -> Result<Exit> {
    let (uid, gid) = crate::transfer::caller();
    for place in places {
        let place = VolumePath::parse(place);
        let fs = image::open(&place.image, devices, Access::Write)?;
        let (dir, name) = image::resolve_parent(&fs, &place)?;
        dir.create_subvolume(name, 0o755, uid, gid).context(|| place.show())?;
        drop(dir);
        image::close(fs, &place.image)?;
        ui.line(format!("Create subvolume '{}'", place.show()))?;
    }
    Ok(Exit::Success)
}

fn snapshot(
    read_only: bool,
    source: &OsString,
    target: &OsString,
    devices: &Devices,
    ui: &Ui,
) -> Result<Exit> {
    let (source, target) = (VolumePath::parse(source), VolumePath::parse(target));
    if source.image != target.image {
        let what = "a snapshot lies on the volume of its source";
        return Err(Failure::new(Exit::Usage, what));
    }
    let fs = image::open(&source.image, devices, Access::Write)?;
    let tree = find(&fs, &source)?;
    // As with cp: a directory that exists takes it in under its old name.
    let inside = fs.resolve(&target.path).ok();
    let (dir, name) = match &inside {
        Some(dir) => {
            let name = source.components().pop().unwrap_or(b"snapshot");
            (dir.clone(), name)
        }
        None => image::resolve_parent(&fs, &target)?,
    };
    dir.snapshot(name, tree, read_only).context(|| target.show())?;
    drop((dir, inside));
    image::close(fs, &source.image)?;
    let kind = if read_only { "readonly snapshot" } else { "snapshot" };
    ui.line(format!("Create {kind} of '{}' in '{}'", source.show(), target.show()))?;
    Ok(Exit::Success)
}

fn delete(places: &[OsString], later: bool, devices: &Devices, ui: &Ui) -> Result<Exit> {
    for place in places {
        let place = VolumePath::parse(place);
        let fs = image::open(&place.image, devices, Access::Write)?;
        let tree = find(&fs, &place)?;
        let (dir, name) = image::resolve_parent(&fs, &place)?;
        dir.delete_subvolume(name).context(|| place.show())?;
        drop(dir);
        fs.sync().context(|| place.show())?;
        ui.line(format!("Delete subvolume {tree} (commit): '{}'", place.show()))?;
        if !later {
            wait_dropped(&fs, tree, ui).context(|| place.show())?;
        }
        image::close(fs, &place.image)?;
    }
    Ok(Exit::Success)
}

/// Waits until the cleaner has given back what a subvolume held.
fn wait_dropped(fs: &Filesystem, tree: TreeId, ui: &Ui) -> buttress_fs::Result<()> {
    let bar = ui.stream_bar("dropping");
    bar.tick();
    let first = fs.statfs()?.blocks_free;
    let mut seen = first;
    while fs.dying_subvolumes()?.contains(&tree) && fs.read_only_reason().is_none() {
        std::thread::sleep(Duration::from_millis(20));
        let stat = fs.statfs()?;
        let freed = stat.blocks_free.saturating_sub(seen);
        seen = seen.max(stat.blocks_free);
        bar.add(freed * u64::from(stat.block_size));
    }
    Ok(())
}

fn list(place: &OsString, devices: &Devices, ui: &Ui) -> Result<Exit> {
    let place = VolumePath::parse(place);
    let fs = image::open(&place.image, devices, Access::Read)?;
    let mut all = fs.subvolumes().context(|| place.show())?;
    all.retain(|info| info.parent.is_some());
    all.sort_by_key(|info| info.tree);
    if ui.json() {
        let documents: Result<Vec<_>> = all.iter().map(|info| document(&fs, info)).collect();
        ui.document(&documents?)?;
        return Ok(Exit::Success);
    }
    for info in &all {
        ui.line(line_of(info))?;
    }
    Ok(Exit::Success)
}

fn line_of(info: &SubvolumeInfo) -> String {
    let (id, top) = (info.tree.0, info.parent.map_or(0, |parent| parent.0));
    let path = location::show(&info.path);
    format!("ID {id} gen {} top level {top} path {path}", info.generation)
}

fn document(fs: &Filesystem, info: &SubvolumeInfo) -> Result<Document> {
    let item = fs.subvolume_item(info.tree).context(|| format!("subvolume {}", info.tree.0))?;
    Ok(Document {
        id: info.tree.0,
        generation: item.generation.0,
        top_level: info.parent.map_or(0, |parent| parent.0),
        path: location::show(&info.path),
        uuid: uuid(&item.uuid).unwrap_or_default(),
        parent_uuid: uuid(&item.parent_uuid),
        received_uuid: uuid(&item.received_uuid),
        created: item.otime.sec,
        created_generation: item.otransid.0,
        read_only: item.flags & RootFlags::READONLY != 0,
    })
}

fn show(place: &OsString, devices: &Devices, ui: &Ui) -> Result<Exit> {
    let place = VolumePath::parse(place);
    let fs = image::open(&place.image, devices, Access::Read)?;
    let tree = find(&fs, &place)?;
    let all = fs.subvolumes().context(|| place.show())?;
    let Some(info) = all.iter().find(|info| info.tree == tree) else {
        return Err(Failure::new(Exit::Failure, format!("{}: it has no name", place.show())));
    };
    if ui.json() {
        ui.document(&document(&fs, info)?)?;
        return Ok(Exit::Success);
    }
    let item = fs.subvolume_item(tree).context(|| place.show())?;
    let path = if info.path.is_empty() { "/".into() } else { location::show(&info.path) };
    let name = info.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = if name.is_empty() { "<FS_TREE>".into() } else { location::show(name) };
    let top = info.parent.map_or(0, |parent| parent.0);
    ui.line(path)?;
    for (what, value) in facts(&item, &name, tree, top) {
        ui.line(format!("\t{:<24}{value}", format!("{what}:")))?;
    }
    ui.line("\tSnapshot(s):")?;
    for other in all.iter().filter(|other| other.parent_uuid == item.uuid && item.uuid != [0; 16]) {
        ui.line(format!("\t{:24}{}", "", location::show(&other.path)))?;
    }
    Ok(Exit::Success)
}

fn facts(item: &RootItem, name: &str, tree: TreeId, top: u64) -> Vec<(&'static str, String)> {
    let or_none = |bytes| uuid(bytes).unwrap_or_else(|| "-".into());
    let time = |time: buttress_fs::Timespec| match time.sec {
        0 => "-".into(),
        sec => format!("{} +0000", when::date_time(sec)),
    };
    let read_only = item.flags & RootFlags::READONLY != 0;
    vec![
        ("Name", name.to_owned()),
        ("UUID", or_none(&item.uuid)),
        ("Parent UUID", or_none(&item.parent_uuid)),
        ("Received UUID", or_none(&item.received_uuid)),
        ("Creation time", time(item.otime)),
        ("Subvolume ID", tree.0.to_string()),
        ("Generation", item.generation.0.to_string()),
        ("Gen at creation", item.otransid.0.to_string()),
        ("Parent ID", top.to_string()),
        ("Top level ID", top.to_string()),
        ("Flags", if read_only { "readonly" } else { "-" }.to_owned()),
        ("Send transid", item.stransid.0.to_string()),
        ("Send time", time(item.stime)),
        ("Receive transid", item.rtransid.0.to_string()),
        ("Receive time", time(item.rtime)),
    ]
}

fn get_default(place: &OsString, devices: &Devices, ui: &Ui) -> Result<Exit> {
    let place = VolumePath::parse(place);
    let fs = image::open(&place.image, devices, Access::Read)?;
    let tree = fs.default_subvolume().context(|| place.show())?;
    let all = fs.subvolumes().context(|| place.show())?;
    let info = all.iter().find(|info| info.tree == tree);
    if ui.json() {
        ui.document(&info.map(|info| document(&fs, info)).transpose()?)?;
        return Ok(Exit::Success);
    }
    match info.filter(|_| tree != TreeId::FS) {
        None => ui.line(format!("ID {} (FS_TREE)", tree.0))?,
        Some(info) => ui.line(line_of(info))?,
    }
    Ok(Exit::Success)
}

fn set_default(what: &OsString, image: Option<OsString>, devices: &Devices) -> Result<Exit> {
    let place = VolumePath::parse(image.as_ref().unwrap_or(what));
    let fs = image::open(&place.image, devices, Access::Write)?;
    let tree = match image {
        None => find(&fs, &place)?,
        Some(_) => {
            let number = what.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| {
                Failure::new(Exit::Usage, format!("{}: no number", what.display()))
            })?;
            // As with btrfs: zero is the top level.
            if number == 0 { TreeId::FS } else { TreeId(number) }
        }
    };
    fs.set_default_subvolume(tree).context(|| place.show())?;
    image::close(fs, &place.image)?;
    Ok(Exit::Success)
}

/// The subvolume whose top a place is.
pub(super) fn find(fs: &Filesystem, place: &VolumePath) -> Result<TreeId> {
    let inode = image::resolve(fs, place)?;
    if inode.id().ino != Ino::ROOT_DIR {
        let what = format!("{}: not a subvolume", place.show());
        return Err(Failure::new(Exit::Failure, what));
    }
    Ok(inode.id().tree)
}

fn uuid(bytes: &[u8; 16]) -> Option<String> {
    (*bytes != [0; 16]).then(|| uuid::Uuid::from_bytes(*bytes).to_string())
}
