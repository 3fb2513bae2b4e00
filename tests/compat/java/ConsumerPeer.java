import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** An official consumer that lives as long as a test wants: it prints what it gets, and what it owns when asked on standard input. */
public class ConsumerPeer {
    /** Arguments: name server, topic, group, concurrent | orderly | broadcasting, AVG | AVG_BY_CIRCLE | CONSISTENT_HASH, ms of work. */
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], Peer.credentials(), strategy(args[4]));
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        Integer interval = Integer.getInteger("peer.interval"); // ms, instead of 30 s
        if (interval != null) {
            consumer.setPollNameServerInterval(interval);
            consumer.setHeartbeatBrokerInterval(interval);
            consumer.setPersistConsumerOffsetInterval(interval);
        }
        if (Boolean.getBoolean("peer.pop")) // the broker assigns queues, and says whether they are popped; not in 4.9
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        long work = Long.parseLong(args[5]);
        if (args[3].equals("broadcasting")) broadcast(consumer);
        if (args[3].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                got(messages, work);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                got(messages, work);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        say("STARTED\t" + consumer.buildMQClientId());
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null && !order.equals("stop"); order = orders.readLine()) {
            StringBuilder owned = new StringBuilder("OWNED");
            for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet())
                if (queue.getTopic().equals(args[1])) owned.append('\t').append(queue.getBrokerName()).append(':').append(queue.getQueueId());
            say(owned.toString());
        }
        consumer.shutdown();
        say("STOPPED");
        System.exit(0);
    }

    /** The enumeration has another package in 4.9 than in 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods())
            if (method.getName().equals("setMessageModel"))
                method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], "BROADCASTING"));
    }

    static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "AVG": return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE": return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH": return new AllocateMessageQueueConsistentHash();
            default: throw new IllegalArgumentException(name);
        }
    }

    static void got(List<MessageExt> messages, long work) {
        for (MessageExt message : messages)
            say("GOT\t" + message.getQueueId() + "\t" + message.getQueueOffset() + "\t" + message.getReconsumeTimes() + "\t"
                + new String(message.getBody(), StandardCharsets.UTF_8));
        try {
            if (work > 0) Thread.sleep(work);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
