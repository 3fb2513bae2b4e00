import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Official clients with message traces: TracePeer NAMESRV TOPIC GROUP sends one message and consumes it, and prints SENT with its id. The first
 *  delivery fails. At the end the clients stop, which sends their traces. */
public class TracePeer {
    public static void main(String[] args) {
        try {
            DefaultMQProducer producer = new DefaultMQProducer("java-tracing", Peer.credentials(), true, null);
            producer.setNamesrvAddr(args[0]);
            producer.start();
            Message message = new Message(args[1], "TagJ", "java-key-1 java-key-2", "body".getBytes(StandardCharsets.UTF_8));
            System.out.println("SENT\t" + producer.send(message).getMsgId());
            CountDownLatch missing = new CountDownLatch(2);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], Peer.credentials(), new AllocateMessageQueueAveragely(), true, null);
            consumer.setNamesrvAddr(args[0]);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(args[1], "*");
            consumer.setPollNameServerInterval(1000); // the retry topic's route
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                missing.countDown();
                return messages.get(0).getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            boolean complete = missing.await(40, TimeUnit.SECONDS);
            Thread.sleep(200); // until the hook behind the listener has run
            consumer.shutdown();
            producer.shutdown();
            System.out.println(complete ? "COMPLETE" : "INCOMPLETE");
            System.out.flush();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
        System.exit(0);
    }
}
