"""Storage of weights in loaded and wrapped models, beside torch's own: in few bits, and on disk."""

from coupling_lib.blocks import storage
from coupling_lib.blocks.offload import OnDisk
from coupling_lib.blocks.quantised import FewBits
from coupling_lib.models.wrap import prepare_model as prepare_model
from coupling_lib.models.wrap import wrap_model as wrap_model

storage.REGISTERED += [FewBits(), OnDisk()]
