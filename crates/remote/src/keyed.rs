//! Places with encrypted volumes.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::names::Names;
use crate::open::Site;
use crate::seal::SealedStore;
use crate::secret::Secret;
use crate::store::{Store, StoreError};

impl Site {
    /// The same place, with objects that a secret opens. A volume that is made there is encrypted.
    #[must_use]
    pub fn encrypted(self, secret: Secret) -> Self {
        let seal = SealedStore::new(self.store, Names::new(&self.prefix), secret);
        let seal = Arc::new(seal);
        Self { store: Arc::clone(&seal) as Arc<dyn Store>, seal: Some(seal), ..self }
    }

    /// Encrypts the key of an encrypted volume anew. From then on only `new` opens the volume.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] for a wrong key, or a volume that is not encrypted.
    pub fn rekey(&self, new: &Secret) -> Result<()> {
        let name = self.place.clone();
        let failed = |source| Error::Store { name, source };
        let none = || StoreError::Key("give the present key, too".to_owned());
        self.seal.as_ref().ok_or_else(none).and_then(|seal| seal.rekey(new)).map_err(failed)
    }

    /// Makes the key of a volume that is about to be made. A clone has that of its base.
    pub(crate) fn make_key(&self, base: Option<&Self>) -> Result<()> {
        let base = base.map(|base| &base.seal);
        let made = match (&self.seal, base) {
            (None, None | Some(None)) => Ok(()),
            (Some(seal), None) => seal.make_key(None),
            (Some(seal), Some(Some(base))) => {
                base.master().and_then(|master| seal.make_key(Some(&master)))
            }
            (None, Some(Some(_))) => Err(StoreError::Key("its base is encrypted".to_owned())),
            (Some(_), Some(None)) => Err(StoreError::Key("its base is not encrypted".to_owned())),
        };
        made.map_err(|source| Error::Store { name: self.place.clone(), source })
    }
}
