//! `btrfs property`: the properties of `buttress property`, and the label of a volume.

use std::ffi::OsString;
use std::path::Path;

use buttress_base::text;
use buttress_control::named::Named;
use buttress_control::order::{Order, PropertyAct};
use buttress_words::usage::Space;
use serde_json::{Map, Value};

use crate::client;
use crate::commands::filesystem::label;
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::location::show;
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show one property, or all properties that are set.
    Get {
        /// The kind of object: inode, subvol, filesystem or device.
        #[arg(short = 't', long = "type", value_parser = kind)]
        kind: Option<Kind>,
        place: OsString,
        name: Option<String>,
    },
    /// Set a property. An empty value removes it.
    Set {
        /// Allow clearing ro of a received subvolume.
        #[arg(short)]
        force: bool,
        /// The kind of object: inode, subvol, filesystem or device.
        #[arg(short = 't', long = "type", value_parser = kind)]
        kind: Option<Kind>,
        place: OsString,
        name: String,
        value: OsString,
    },
    /// List the known properties.
    List {
        /// The kind of object: inode, subvol, filesystem or device.
        #[arg(short = 't', long = "type", value_parser = kind)]
        kind: Option<Kind>,
        place: OsString,
    },
}

/// The kind of object with a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Inode,
    Subvolume,
    Volume,
    Device,
}

fn kind(text: &str) -> Result<Kind, String> {
    let is = |whole: &str| !text.is_empty() && whole.starts_with(text);
    match text {
        _ if is("inode") => Ok(Kind::Inode),
        _ if is("subvol") => Ok(Kind::Subvolume),
        _ if is("filesystem") => Ok(Kind::Volume),
        _ if is("device") => Ok(Kind::Device),
        _ => Err("invalid object type".to_owned()),
    }
}

const LABEL: &str = "label";

/// Returns the kind of object that has a property.
fn kinds_of(name: &str) -> Result<&'static [Kind]> {
    match name {
        "ro" => Ok(&[Kind::Subvolume]),
        LABEL => Ok(&[Kind::Volume, Kind::Device]),
        "compression" => Ok(&[Kind::Inode]),
        _ => Err(Failure::new(Exit::Failure, format!("unknown property: {name}"))),
    }
}

fn expect(name: &str, kind: Option<Kind>) -> Result<()> {
    let kinds = kinds_of(name)?;
    if kind.is_none_or(|kind| kinds.contains(&kind)) {
        return Ok(());
    }
    Err(incompatible(name))
}

fn incompatible(name: &str) -> Failure {
    Failure::new(Exit::Failure, format!("object is not compatible with property: {name}"))
}

/// A place, and whether it is a whole volume: a device, or the top of a mount.
struct Place {
    named: Named,
    is_device: bool,
    is_top: bool,
}

impl Place {
    fn of(place: &OsString) -> Result<Self> {
        let named = Named::parse(place)?;
        let is_alone = named.volume.as_os_str() == place.as_os_str();
        let is_device = !named.spot.is_mounted && is_alone;
        let is_top = named.spot.is_mounted && named.spot.path.iter().all(|byte| *byte == b'/');
        Ok(Self { named, is_device, is_top })
    }

    fn act(&self, act: PropertyAct, ui: &Ui) -> Result<Map<String, Value>> {
        if let (true, PropertyAct::Set { name, .. }) = (self.is_device, &act) {
            // A whole volume has a label alone.
            return Err(incompatible(name));
        }
        if self.is_device {
            return Ok(Map::new());
        }
        let order = Order::Property { at: self.named.spot.clone(), act };
        let done = client::run(&order, &self.named.volume, &Devices::default(), "property", ui)?;
        Ok(done.as_object().cloned().unwrap_or_default())
    }

    fn has_label(&self, kind: Option<Kind>) -> bool {
        let is_volume = matches!(kind, Some(Kind::Volume | Kind::Device));
        is_volume || kind.is_none() && (self.is_device || self.is_top)
    }
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Get { kind, place, name } => {
            name.as_deref().map_or(Ok(()), |name| expect(name, kind))?;
            let at = Place::of(&place)?;
            let (is_label, is_all) = (name.as_deref() == Some(LABEL), name.is_none());
            let mut found = match name {
                _ if is_label => Map::new(),
                name => at.act(PropertyAct::Get { name }, ui)?,
            };
            found.retain(|name, _| expect(name, kind).is_ok());
            // As in btrfs-progs, `ro` comes first, then the label.
            let line = |name: &str, value: &Value| {
                let value = value.as_str().and_then(text::decode).unwrap_or_default();
                ui.line(format!("{name}={}", show(&value)))
            };
            found.get("ro").map_or(Ok(()), |value| line("ro", value))?;
            if is_label || is_all && at.has_label(kind) {
                let label = Space::of(&at.named.volume, ui)?.label();
                ui.line(format!("{LABEL}={label}"))?;
            }
            found.get("compression").map_or(Ok(()), |value| line("compression", value))?;
        }
        Verb::Set { kind, place, name, value, .. } if name == LABEL => {
            expect(&name, kind)?;
            let volume = Named::parse(&place)?.volume;
            label::set(Path::new(&volume), &Devices::default(), &value, ui)?;
        }
        Verb::Set { force, kind, place, name, value } => {
            expect(&name, kind)?;
            let value = value.to_string_lossy().into_owned();
            Place::of(&place)?.act(PropertyAct::Set { name, value, force }, ui)?;
        }
        Verb::List { kind, place } => {
            let at = Place::of(&place)?;
            let mut found = at.act(PropertyAct::List, ui)?;
            found.retain(|name, _| expect(name, kind).is_ok());
            if at.has_label(kind) {
                found.insert(LABEL.to_owned(), "label of the filesystem".into());
            }
            for name in ["ro", LABEL, "compression"] {
                let Some(what) = found.get(name) else { continue };
                ui.line(format!("{name:<20}{}", what.as_str().unwrap_or_default()))?;
            }
        }
    }
    Ok(Exit::Success)
}
