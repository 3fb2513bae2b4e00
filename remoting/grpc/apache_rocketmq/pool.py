"""A pool of descriptors of our own for the generated classes.

In protobuf's default pool, two packages in one process cannot both have ``apache.rocketmq.v2``: a
program that runs a broker could not also use RocketMQ's Python client.
"""

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2

POOL = descriptor_pool.DescriptorPool()
for _module in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)
