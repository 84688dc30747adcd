"""What an engine knows of the options of its instance."""

import msgspec

from qa_service.instance.devices import DeviceAssignment
from qa_service.instance.engines import EngineConfig
from qa_service.instance.instance_options import InstanceOptions


def test_an_engine_gets_every_option_of_its_instance_and_its_device():
    options = InstanceOptions(
        precision="fp16", intra_op_num_threads=3, static_shapes_bytes=7, max_batch_size=5
    )
    config = EngineConfig.of(options, DeviceAssignment("cuda:2", "2", gpu_memory_bytes=1 << 30))
    for name, value in msgspec.structs.asdict(options).items():
        assert getattr(config, name) == value, name
    assert (config.device, config.cuda_index, config.gpu_memory_bytes) == ("cuda", 0, 1 << 30)
