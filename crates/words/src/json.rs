//! The JSON of btrfs-progs: an object with a header, and a list under the name of the command.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::exit::Result;
use crate::ui::Ui;

/// The answer of a command, by the name that btrfs-progs gives to it.
struct Document<'d, T> {
    name: &'static str,
    answer: &'d T,
}

impl<T: Serialize> Serialize for Document<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("__header", &json!({ "version": "1" }))?;
        map.serialize_entry(self.name, self.answer)?;
        map.end()
    }
}

/// An object of which every value is a text. The fields keep their order.
///
/// Plain data: what is printed.
#[derive(Debug)]
pub struct Object(pub Vec<(&'static str, String)>);

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, text)| (name, text)))
    }
}

/// Prints the answer of a command. Numbers of btrfs-progs are texts: the caller makes them so.
///
/// # Errors
///
/// Standard output that cannot be written.
pub fn document(name: &'static str, answer: &impl Serialize, ui: &Ui) -> Result<()> {
    ui.document(&Document { name, answer })
}
