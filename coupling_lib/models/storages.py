"""Ways to store weights that loaded and wrapped models may have, beside torch's own: in few bits, and on disk."""

from coupling_lib.blocks import storage
from coupling_lib.blocks.offload import OnDisk
from coupling_lib.blocks.quantised import FewBits
from coupling_lib.models.wrap import prepared as prepared
from coupling_lib.models.wrap import wrap_model as wrap_model

storage.REGISTERED += [FewBits(), OnDisk()]
