//! Checks a volume that a Buttress mount has open. The mount keeps its last commit unchanged
//! meanwhile, and this commit is checked.
//!
//! # Invariants
//!
//! - **M1** The check writes nothing, and programs can write through the mount meanwhile.
//! - **M2** Errors count only if the server kept the commit unchanged until the check ended. If the
//!   server ended earlier, other writes may have reused the commit's space, and the check fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};
use buttress_check::Options;
use buttress_remote::{OpenRequest, is_remote};
use buttress_volume::Uuid;

use super::{About, Args, Steps, answer, answer_users};
use crate::client;
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::live::{self, Hold};
use crate::ui::Ui;

/// The result for the volume on the command line.
pub(super) enum MountedCheck {
    /// The check was made.
    Checked(Exit),
    /// No mount has the volume open. The caller checks the volume at this path.
    AtRest(PathBuf),
}

/// Checks a volume that a mount of this user has open.
///
/// # Errors
///
/// The mount refuses, or it ends before the check does (M2). Also the errors of the check.
pub(super) fn check(args: &Args, options: &Options, ui: &Ui) -> Result<MountedCheck> {
    let at_rest = || Ok(MountedCheck::AtRest(args.image.clone()));
    if is_remote(&args.image) {
        // In a store of objects, a reader protects the commit that it opened, so no server has to
        // keep that commit.
        return at_rest();
    }
    let Some((socket, server)) = live::find(&args.image)? else { return at_rest() };
    let Some(target) = server.subject.target.clone() else { return at_rest() };
    let name = args.image.display();
    let process = server.pid;
    let target = target.display();
    if args.writes() {
        let what =
            format!("{name}: mounted at {target} by process {process}: unmount it to repair");
        return Err(Failure::new(Exit::Failure, what));
    }
    if is_remote(&server.subject.image) {
        client::commit(&args.image);
        return Ok(MountedCheck::AtRest(server.subject.image));
    }
    let told = |failure: Failure| {
        let what = format!("{name}: mounted at {target} by process {process}: {failure}");
        Failure::new(failure.exit, what)
    };
    let Some(hold) = live::hold(&socket).map_err(told)? else {
        closing::until_closed(&server.subject.image);
        return Ok(MountedCheck::AtRest(server.subject.image));
    };
    if let Some(why) = &hold.left_out {
        ui.note(format!("{name}: what was written last is left out: {why}"));
    }
    let about = About {
        uuid: Uuid(hold.superblock.fsid).to_string(),
        commit: hold.superblock.generation.0,
        is_mounted: true,
        of_btrfs: args.of_btrfs,
    };
    if !ui.json() {
        let (uuid, commit) = (&about.uuid, about.commit);
        ui.line(format!("Checking filesystem on {name}\nUUID: {uuid}"))?;
        ui.line(format!("mounted at {target} by process {process}: commit {commit} is checked"))?;
    }
    let devices = open(args, &hold)?;
    let ended = || {
        let what = "it was unmounted meanwhile, or its server ended: check it again";
        told(Failure::new(Exit::Failure, what))
    };
    if let Some(asked) = args.asked() {
        let found = asked.find(devices, Some(&hold.superblock), options, &name.to_string());
        if !hold.is_kept() {
            return Err(ended());
        }
        return answer_users(&found?, about, args, ui).map(MountedCheck::Checked);
    }
    let steps = Steps::new(ui, options);
    let report = buttress_check::check_held(devices, &hold.superblock, options, &steps)
        .context(|| name.to_string());
    drop(steps);
    let is_clean = report.as_ref().is_ok_and(buttress_check::Report::is_clean);
    if !is_clean && !hold.is_kept() {
        return Err(ended());
    }
    answer(&report?, None, about, ui).map(MountedCheck::Checked)
}

/// Opens the devices in spite of the server's lock. Uses the devices of the command line if it
/// names all of them, otherwise the devices that the server names.
fn open(args: &Args, hold: &Hold) -> Result<Vec<Arc<dyn Device>>> {
    let others = &args.devices.devices;
    let are_named = !args.image.is_dir() && (hold.devices.len() == 1 || !others.is_empty());
    let named: Vec<&Path> = match are_named {
        true => std::iter::once(&args.image).chain(others).map(PathBuf::as_path).collect(),
        false => hold.devices.iter().map(PathBuf::as_path).collect(),
    };
    let past_lock = OpenOptions { lock: false, ..OpenOptions::READ };
    let open = |path: &Path| -> Result<Arc<dyn Device>> {
        let opened = buttress_remote::open(path, past_lock, &OpenRequest::default())
            .map_err(Failure::of_remote)?;
        Ok(opened.device())
    };
    named.into_iter().map(open).collect()
}
