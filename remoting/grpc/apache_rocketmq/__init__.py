"""The messages of ``apache.rocketmq.v2``, release 2.1.2 of apache/rocketmq-apis.

``make protobuf`` writes the two modules ``…_pb2`` from the ``.proto`` files, which are unchanged.
"""
