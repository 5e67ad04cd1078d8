//! What can be asked of a volume as a whole: by a verb that opens it, or of the mount that has it open.
//!
//! # Place
//!
//! A verb makes an [`Order`] and calls [`run`], which finds who carries it out: the mount of this user that
//! has the volume open, over its socket ([`crate::live`]), or this process. Both do it by [`Order::carry_out`],
//! and the verb shows what came of it.
//!
//! # Invariants
//!
//! - **O1** Whoever asked and went away, or was told to stop, ends what he asked for where it can be gone on
//!   with: a balance is paused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_fs::{BalanceProgress, Filesystem, ScrubOptions};
use buttress_fuse::Beside;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::commands::filesystem::resize;
use crate::commands::{balance, device, fstrim, scrub, subvolume};
use crate::exit::{Context, Result};
use crate::image::{self, Access, Devices};
use crate::live;
use crate::names;
use crate::ui::Ui;

/// What is asked for, in the words of the command line. Paths are whole ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    BalanceStart {
        data: Option<String>,
        metadata: Option<String>,
        system: Option<String>,
        force: bool,
    },
    BalanceResume,
    BalancePause,
    BalanceCancel,
    BalanceStatus,
    DeviceAdd {
        #[serde(with = "names::path")]
        new: PathBuf,
        force: bool,
    },
    DeviceRemove {
        called: String,
    },
    DeviceReplace {
        called: String,
        #[serde(with = "names::path")]
        new: PathBuf,
        force: bool,
    },
    DeviceStats {
        reset: bool,
    },
    Fstrim {
        offset: u64,
        length: u64,
        minimum: u64,
    },
    Remount {
        read_only: bool,
    },
    Resize {
        size: String,
    },
    Scrub {
        resume: bool,
        read_only: bool,
        #[serde(default)]
        hold_groups: bool,
        #[serde(default, with = "names::path_or_none")]
        state: Option<PathBuf>,
    },
    Subvolume(subvolume::Act),
}

/// How far an order is, for a bar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Bytes.
    pub done: u64,
    pub total: u64,
    /// What else there is to say.
    pub text: String,
}

impl Step {
    fn of_moving(progress: &BalanceProgress) -> Self {
        Self {
            done: progress.moved,
            total: progress.bytes,
            text: format!("{} of {} chunks", progress.completed, progress.expected),
        }
    }
}

/// Is told how far an order is, and says whether to go on.
pub(crate) type Watch<'w> = &'w mut dyn FnMut(&Step) -> bool;

impl Order {
    /// Does it. `name` is what the volume is called in errors, `beside` its mount if it has one.
    pub(crate) fn carry_out(
        &self,
        fs: &Filesystem,
        name: &str,
        beside: Option<&Beside>,
        watch: Watch<'_>,
    ) -> Result<Value> {
        let mut moving = |progress: &BalanceProgress| watch(&Step::of_moving(progress));
        match self {
            Self::BalanceStart { data, metadata, system, force } => {
                let options = balance::options(data, metadata, system)?;
                if !force {
                    balance::refuse_fewer_copies(fs, &options).context(|| name)??;
                }
                Ok(balance::document(&fs.balance(&options, &mut moving).context(|| name)?))
            }
            Self::BalanceResume => {
                Ok(balance::document(&fs.resume_balance(&mut moving).context(|| name)?))
            }
            Self::BalancePause => {
                fs.pause_balance().context(|| name)?;
                Ok(Value::Null)
            }
            Self::BalanceCancel => {
                fs.cancel_balance().context(|| name)?;
                Ok(Value::Null)
            }
            Self::BalanceStatus => balance::status_of(fs, false).context(|| name),
            Self::DeviceAdd { new, force } => {
                let added = device::fresh(new, *force)?;
                let id = fs.add_device(added).context(|| new.display().to_string())?;
                Ok(json!({ "devid": id.0 }))
            }
            Self::DeviceRemove { called } => {
                let id = device::find(fs, called, name)?;
                fs.remove_device(id, &mut moving).context(|| name)?;
                Ok(json!({ "devid": id.0 }))
            }
            Self::DeviceReplace { called, new, force } => {
                let new = device::fresh(new, *force)?;
                let id = device::find(fs, called, name)?;
                let found = fs.replace_device(id, new, &mut moving).context(|| name)?;
                let lost = found.uncorrectable_errors;
                Ok(json!({ "devid": id.0, "uncorrectable_errors": lost }))
            }
            Self::DeviceStats { reset } => device::stats_of(fs, *reset, name),
            Self::Fstrim { offset, length, minimum } => {
                let options = fstrim::options(*offset, *length, *minimum);
                fstrim::carry_out(fs, options, name, watch)
            }
            Self::Remount { read_only } => {
                let hint =
                    if *read_only { "" } else { ": it has to be unmounted and mounted anew" };
                fs.set_read_only(*read_only).context(|| format!("{name}{hint}"))?;
                Ok(Value::Null)
            }
            Self::Resize { size } => resize::carry_out(fs, size, name, &mut moving),
            Self::Scrub { resume, read_only, hold_groups, state } => {
                let how = ScrubOptions {
                    read_only: *read_only,
                    hold_groups: *hold_groups,
                    ..ScrubOptions::default()
                };
                scrub::carry_out(fs, how, (*resume, state.as_deref()), name, watch)
            }
            Self::Subvolume(act) => act.carry_out(fs, beside, watch),
        }
    }

    /// How the volume is to be opened for it.
    fn access(&self) -> Access {
        match self {
            Self::BalanceStatus => Access::Peek,
            Self::DeviceStats { reset: false } | Self::Scrub { read_only: true, .. } => {
                Access::Read
            }
            Self::Subvolume(act) => act.access(),
            _ => Access::Write,
        }
    }
}

/// Carries an order out, wherever the volume is open, with a bar. Ctrl-C and `balance pause` end it (O1).
pub(crate) fn run(
    order: &Order,
    image: &Path,
    devices: &Devices,
    what: &'static str,
    ui: &Ui,
) -> Result<Value> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context(|| "watching for signals")?;
    }
    let (mut bar, mut shown) = (None, 0);
    let mut watch = |step: &Step| {
        let bar = bar.get_or_insert_with(|| ui.bytes_bar(what, step.total));
        bar.add(step.done.saturating_sub(shown));
        shown = step.done;
        bar.message(&step.text);
        !stop.load(Ordering::Relaxed)
    };
    if let Some((socket, _)) = live::find(image)? {
        return live::give(&socket, order, &stop, &mut watch);
    }
    let fs = image::open(image, devices, order.access())?;
    let done = order.carry_out(&fs, &image.display().to_string(), None, &mut watch)?;
    image::close(fs, image)?;
    Ok(done)
}

/// The whole name of a file that another process will open.
pub(crate) fn whole(path: &Path) -> Result<PathBuf> {
    path.canonicalize().context(|| path.display().to_string())
}
