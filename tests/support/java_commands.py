"""The commands of RocketMQ's mqadmin that ours has, with their options, as Java declares them
(tools/…/command/**, develop, 2025-09): letter, long name, whether it takes a value.
"""

from __future__ import annotations

# "letter name" takes a value; "letter name!" does not; an upper-case R after it: required.
JAVA: dict[str, str] = {
    "clusterList": "m moreStats!, i interval, c clusterName",
    "brokerStatus": "b brokerAddr, c clusterName",
    "topicList": "c clusterModel!",
    "topicRoute": "t topic R, l list!",
    "topicStatus": "t topic R, c cluster",
    "updateTopic": (
        "b brokerAddr, c clusterName, a attributes, t topic R, r readQueueNums, w writeQueueNums, p"
        " perm, o order, u unit, s hasUnitSub"
    ),
    "deleteTopic": "t topic R, c clusterName R",
    "consumerProgress": "g groupName, t topicName, s showClientIP, c cluster",
    "consumerConnection": "g consumerGroup R, b brokerAddr",
    "producerConnection": "g producerGroup R, t topic R",
    "updateSubGroup": (
        "b brokerAddr, c clusterName, g groupName R, s consumeEnable, m consumeFromMinEnable, d"
        " consumeBroadcastEnable, o consumeMessageOrderly, q retryQueueNums, r retryMaxTimes, p"
        " groupRetryPolicy, i brokerId, w whichBrokerWhenConsumeSlowly, a notifyConsumerIdsChanged,"
        " - attributes"
    ),
    "sendMessage": "t topic R, p body R, k key, c tags, b broker, i qid, m msgTraceEnable",
    "consumeMessage": (
        "t topic R, b brokerName, i queueId, o offset, g consumerGroup, s beginTimestamp, e"
        " endTimestamp, c MessageNumber"
    ),
    "queryMsgByKey": "t topic R, k msgKey R, b beginTimestamp, e endTimestamp, m maxNum, c cluster,"
    " p keyType, l lastKey",
    "queryMsgById": (
        "t topic R, i msgId R, g consumerGroup, d clientId, s sendMessage, u unitName, f"
        " bodyFormat, c cluster"
    ),
    "queryMsgByUniqueKey": (
        "i msgId R, g consumerGroup, d clientId, t topic R, a showAll!, s startTime, e endTime, c"
        " cluster"
    ),
    "queryMsgTraceById": "i msgId R, t traceTopic, b beginTimestamp, e endTimestamp, c maxNum",
    "deleteExpiredCommitLog": "b brokerAddr, c cluster",
    "cleanExpiredCQ": "b brokerAddr, c cluster",
    "cleanUnusedTopic": "b brokerAddr, c cluster",
    "resetOffsetByTime": (
        "g group R, t topic R, s timestamp R, f force, b broker, q queue, o offset, c cluster"
    ),
    "skipAccumulatedMessage": "g group R, t topic R, f force, c cluster",
    "cloneGroupOffset": "s srcGroup R, d destGroup R, t topic R, o offline",
    "getBrokerConfig": "b brokerAddr, c clusterName",
    "updateBrokerConfig": "a updateAllBroker, b brokerAddr, c clusterName, k key R, v value R",
    "getNamesrvConfig": "",
    "updateNamesrvConfig": "k key R, v value R",
    "updateKvConfig": "s namespace R, k key R, v value R",
    "deleteKvConfig": "s namespace R, k key R",
    "updateOrderConf": "m method R, t topic R, v orderConf",
    "wipeWritePerm": "b brokerName R",
    "addWritePerm": "b brokerName R",
    "updateTopicPerm": "b brokerAddr, c clusterName, p perm R, t topic R",
    "deleteSubGroup": "b brokerAddr, c clusterName, g groupName R, r removeOffset",
    "getConsumerConfig": "g groupName R",
    "setConsumeMode": "b brokerAddr, c clusterName, g groupName R, m mode R, q popShareQueueNum,"
    " t topicName R",
    "brokerConsumeStats": "b brokerAddr R, l level, o order, t timeoutMillis",
    "producer": "b broker R",
    "topicClusterList": "t topic R",
    "updateTopicList": "b brokerAddr, c clusterName, f filename R",
    "updateSubGroupList": "b brokerAddr, c clusterName, f filename R",
    "queryCq": "b broker, c count, g consumer, i index R, q queue R, t topic R",
    "consumerStatus": "b brokerAddr, g consumerGroup R, i clientId, s jstack!",
    "statsAll": "a activeTopic!, t topic",
    "printMsg": (
        "t topic R, c charsetName, s subExpression, b beginTimestamp, e endTimestamp, d printBody,"
        " l lmqParentTopic"
    ),
    "printMsgByQueue": (
        "t topic R, a brokerName R, i queueId R, c charsetName, s subExpression, b beginTimestamp,"
        " e endTimestamp, p print, d printBody, f calculate"
    ),
    "queryMsgByOffset": (
        "t topic R, b brokerName R, i queueId R, o offset R, f bodyFormat, r routeTopic"
    ),
    "dumpCompactionLog": "f file",
    "checkMsgSendRT": "t topic R, a amount, s size",
    "sendMsgStatus": "b brokerName R, s messageSize, c count",
    "clusterRT": "a amount, s size, c cluster, p print, m machine, i interval",
    "getSyncStateSet": "a controllerAddress R, b brokerName, c clusterName, i interval",
    "getBrokerEpoch": "b brokerName, c clusterName, i interval",
    "electMaster": "a controllerAddress R, b brokerId R, bn brokerName R, c clusterName R",
    "cleanBrokerMetadata": (
        "a controllerAddress R, b brokerControllerIdsToClean, bn brokerName R, c clusterName, l"
        " cleanLivingBroker!"
    ),
    "getControllerMetaData": "a controllerAddress R",
    "getControllerConfig": "a controllerAddress R",
    "updateControllerConfig": "a controllerAddress R, k key R, v value R",
    "haStatus": "c clusterName, b brokerAddr, i interval",
    "resetMasterFlushOffset": "b brokerAddr, o offset",
    "allocateMQ": "t topic R, i ipList R",
    "startMonitoring": "",
    "exportMetadata": (
        "c clusterName, b brokerAddr, f filePath, t topic!, g subscriptionGroup!, s specialTopic!"
    ),
    "exportConfigs": "c clusterName R, f filePath",
    "exportMetrics": "c clusterName R, f filePath",
    "exportPopRecord": "c clusterName, b brokerAddr, d dryRun",
    "getColdDataFlowCtrInfo": "b brokerAddr, c clusterName",
    "updateColdDataFlowCtrGroupConfig": (
        "b brokerAddr, c clusterName, g consumerGroup R, v threshold R"
    ),
    "removeColdDataFlowCtrGroupConfig": "b brokerAddr, c clusterName, g consumerGroup R",
    "setCommitLogReadAheadMode": "b brokerAddr, c clusterName, m commitLogReadAheadMode R",
    "createUser": "b brokerAddr, c clusterName, u username R, p password R, t userType",
    "updateUser": "b brokerAddr, c clusterName, u username R, p password, t userType, s userStatus",
    "deleteUser": "b brokerAddr, c clusterName, u username R",
    "getUser": "b brokerAddr, c clusterName, u username",
    "listUser": "b brokerAddr, c clusterName, f filter",
    "copyUser": "f fromBroker R, t toBroker R, u usernames",
    "createAcl": (
        "b brokerAddr, c clusterName, s subject R, r resources R, a actions R, d decision R, i"
        " sourceIp"
    ),
    "updateAcl": (
        "b brokerAddr, c clusterName, s subject R, r resources R, a actions R, d decision R, i"
        " sourceIp"
    ),
    "deleteAcl": "b brokerAddr, c clusterName, s subject R, r resources",
    "getAcl": "b brokerAddr, c clusterName, s subject",
    "listAcl": "b brokerAddr, c clusterName, s subject, r resource",
    "copyAcl": "f fromBroker R, t toBroker R, s subjects",
}
